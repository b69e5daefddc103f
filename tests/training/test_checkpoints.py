"""The published checkpoints: what `make checkpoints` writes, and what is committed of it."""

from argparse import Namespace
from dataclasses import replace
from statistics import mean

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file

from hf_bidir.hub import evaluate_checkpoint
from hf_bidir.hub.card import card_differences
from hf_bidir.hub.results import read_results
from tests.training.checkpoints_of_others import checkpoint_of
from tests.training.conftest import few_digits, read
from training import checkpoints, image_classification
from training.checkpoints import CARDS, PAIRS, Pair

BRIEF = {"max_steps": 2, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
NAMES = ("digits-tanhmax", "digits-softmax")
OPTIONS = Namespace(data_dir=None, minilm=None, dinov2=None)
COMMITTED = sorted(file.parent for file in CARDS.glob("*/README.md"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where runs and cards are written."""
    place = tmp_path_factory.mktemp("checkpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "RUNS", place / "runs")
        patch.setattr(checkpoints, "CARDS", place / "cards")
        yield place


@pytest.fixture(scope="module")
def made(place):
    """A pair trained for two steps with two seeds, its runs and its cards."""
    pair = Pair("digits", "image_classification", options=dict.fromkeys(NAMES, BRIEF), seeds=2)
    with few_digits():
        checkpoints.make(pair, OPTIONS)
    return place / "runs", place / "cards"


def test_every_card_agrees_with_its_numbers_and_lies_beside_small_weights_and_the_code_that_loads_them(made):
    files = {file.name for file in (made[1] / "digits-tanhmax").iterdir()}
    assert {"model.safetensors", "preprocessor_config.json", "explanation.png", "modeling_bidir.py"} <= files
    for name in NAMES:
        assert card_differences(made[1] / name) == []
        assert "Verified: `hf-bidir evaluate` measured the same numbers" in (made[1] / name / "README.md").read_text()


def test_a_card_has_the_seeds_of_the_checkpoint_and_of_its_softmax_counterpart(made):
    runs, cards = made
    seeds = read(cards / "digits-tanhmax/seeds.json")
    for column, name in zip(("this", "counterpart"), NAMES, strict=True):
        folders = (runs / name, runs / f"seeds/{name}-seed1")
        accuracy = [read(folder / "evaluation.json")["scores"]["accuracy"] for folder in folders]
        assert (seeds[column]["name"], seeds[column]["scores"]["accuracy"]) == (name, accuracy)
    assert read(runs / "seeds/digits-tanhmax-seed1/run.json")["seed"] == 1
    means = {name: f"{mean(seeds[name]['scores']['accuracy']):.4f} ± " for name in ("this", "counterpart")}
    card = (cards / "digits-tanhmax/README.md").read_text(encoding="utf-8")
    assert f"**Accuracy {means['this']}" in card
    assert f" against digits-softmax** ({means['counterpart']}" in card
    assert "mean and standard deviation of 2 seeds" in card
    assert "```bash\npython -m training.checkpoints digits\n```" in card


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_a_committed_card_matches_its_files(folder):
    assert card_differences(folder) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_checkpoint_has_the_score_of_its_card(name):
    claimed = read_results(CARDS / name).overall
    assert "accuracy" in claimed
    measured = evaluate_checkpoint(CARDS / name).scores
    assert {metric: measured[metric] for metric in claimed} == pytest.approx(claimed, abs=0.003)  # one digit of 360


def test_a_healed_checkpoint_comes_from_its_counterpart_of_the_same_seed(monkeypatch):
    trained, recipes = [], []
    monkeypatch.setattr(checkpoints, "trained", lambda name, pair, seed, options: trained.append((name, seed)))
    monkeypatch.setattr(checkpoints.distill, "main", recipes.append)
    checkpoints.train("sst2-minilm-tanhmax", PAIRS["sst2-minilm"], 1, OPTIONS)
    assert trained == [("sst2-minilm-softmax", 1)]
    assert recipes[0]["model_name_or_path"] == checkpoints.run_folder("sst2-minilm-softmax", 1)
    assert recipes[0]["keep_signs"]  # as its card says


def test_a_pair_starts_from_the_folder_of_its_own_pretrained_model(monkeypatch):
    recipes = []
    monkeypatch.setattr(image_classification, "main", recipes.append)
    options = Namespace(data_dir=None, minilm="minilm", dinov2="dinov2")
    checkpoints.train("cifar10-dinov2-softmax", PAIRS["cifar10-dinov2"], 0, options)
    assert recipes[0]["model_name_or_path"] == "dinov2"


def test_the_card_of_a_healed_checkpoint_has_the_scores_of_its_file_in_half_precision(tmp_path, place):
    words, folder = checkpoints.SENTENCE.split(), place / "cards/sst2-minilm-tanhmax"
    (tmp_path / "sst2").mkdir()
    for split in ("train", "validation", "test"):
        rows = {"text": [f"{words[row % 5]} {words[row % 7]}" for row in range(120)], "label": [0, 1] * 60}
        Dataset.from_dict(rows).to_parquet(str(tmp_path / f"sst2/{split}.parquet"))
    minilm = checkpoint_of("Roberta", tmp_path / "minilm", words=checkpoints.SENTENCE)
    softmax = BRIEF | {"model_name_or_path": minilm, "use_cpu": True}
    healed = BRIEF | {"use_cpu": True}
    options = {"sst2-minilm-tanhmax": healed, "sst2-minilm-softmax": softmax}
    pair = replace(PAIRS["sst2-minilm"], seeds=1, options=options)
    checkpoints.make(pair, Namespace(**vars(OPTIONS) | {"data_dir": tmp_path}))
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card_differences(folder) == []
    assert load_file(folder / "model.safetensors")["classifier.out_proj.weight"].dtype == torch.float16
    assert f"| accuracy | {read(folder / 'evaluation.json')['scores']['accuracy']:.4f} |" in card
    assert "converted and healed" in card
