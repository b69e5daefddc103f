"""python -m research.paper end to end: rates are selected, chosen models measured, and nothing is repeated."""

import dataclasses

import pandas as pd
import pytest
from transformers import Trainer

from benchmarks.runs import read_runs
from hf_bidir.cli.script import parse
from research.paper import run
from research.paper.deep_training import trainer_of
from research.paper.experiments import NAMES, VARIANTS, read_experiments
from research.paper.run import Cells, best_rate, beyond
from research.runs import TRAINING


@pytest.fixture(scope="module")
def finished(experiment, tmp_path_factory):
    """The rows and the folder of a whole run with two seeds."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "FILE", folder / "cells.csv")
        patch.setattr(run, "read_experiments", lambda names: [experiment])
        patch.setattr(run, "RATE_SEEDS", 1)
        command = ["synthetic", "--seeds", "2", "--runs", str(folder / "runs")]
        run.main(command)
        rows = read_runs(run.FILE)
        patch.setattr(Trainer, "train", lambda *_, **__: pytest.fail("it was trained again"))
        run.main(command)
        assert read_runs(run.FILE).equals(rows)
    return rows, folder


def test_every_variant_and_seed_has_a_measured_row_with_its_versions(finished):
    rows, _ = finished
    assert rows[["variant", "seed"]].to_numpy().tolist() == [[v, s] for v in ("softmax", "tanhmax") for s in (0, 1)]
    assert rows["chosen"].all()
    assert rows["tau_|a|_erasure"].notna().all()
    assert (rows["worst_recall"] <= rows["test_accuracy"] + 1e-9).all()
    assert (rows["rows_train"] == 240).all()
    assert rows["versions"].str.startswith("torch ").all()


def test_the_words_of_the_first_seeds_are_drawn(finished):
    assert (finished[1] / "tiny-polarity.png").stat().st_size > 1000


def test_a_training_that_fails_has_a_row_without_scores(experiment, tmp_path):
    cells = Cells(experiment, None, tmp_path)
    row, _ = cells.run("tiny", "softmax", 1e30, 0)
    assert row == {"chosen": False}


def test_a_grid_grows_until_its_best_rate_is_inside(experiment, tmp_path, monkeypatch):
    wide = dataclasses.replace(experiment, variants=["softmax"], learning_rates=[1e-3, 3e-3])
    tried = []
    monkeypatch.setattr(run, "best_rate", lambda _: max(trial["rate"] for trial in tried))
    for trial in Cells(wide, None, tmp_path).trials(5):
        tried.append(trial)
    rates = [trial["rate"] for trial in tried if "chosen" not in trial]
    assert sorted(set(rates)) == [1e-3, 3e-3, 9e-3, 2.7e-2]
    chosen = [(trial["rate"], trial["seed"]) for trial in tried if trial.get("chosen")]
    assert chosen == [(2.7e-2, seed) for seed in range(5)]
    assert beyond([1e-3, 3e-3, 1e-2], 3e-3) is None
    assert beyond([1e-2], 1e-2) is None
    assert beyond([1e-3, 3e-3, 1e-2], 1e-3) == 3.3e-4


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [
        ({1: [0.8], 2: [0.9], 3: [0.7]}, 2),
        ({1: [None], 2: [0.1], 3: [None]}, 2),  # failed runs
        ({1: [0.8, 0.8], 2: [0.9, 0.6]}, 1),  # the mean over seeds
        ({1: [0.8, 0.8], 2: [0.9, None]}, 1),
        ({3: [0.9], 1: [0.9], 2: [0.9], 4: [0.8]}, 2),  # the middle one of equally good ones
        ({1: [0.9], 2: [0.9]}, 1),
        ({1: [0.8, 0.8, 0.8, 0.0], 2: [0.7]}, 1),  # the first three seeds
    ],
)
def test_the_learning_rate_is_chosen_by_mean_validation_accuracy(accuracies, best):
    rows = [
        {"rate": rate, "seed": seed, "eval_accuracy": accuracy}
        for rate, seeds in accuracies.items()
        for seed, accuracy in enumerate(seeds)
    ]
    assert best_rate(pd.DataFrame(rows)) == best


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_names_options_that_its_training_script_knows(name):
    (experiment,) = read_experiments([name])
    for variant in experiment.variants:
        settings = experiment.recipe | VARIANTS[variant] | {"output_dir": "unused"}
        trainer_of(settings)
        parse(TRAINING[experiment.kind].OPTIONS, settings)
