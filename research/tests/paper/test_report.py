"""The tables of the report, from the rows of a run."""

import re

import numpy as np
import pandas as pd
import pytest

from benchmarks.runs import where
from hf_bidir.common.errors import InputError
from hf_bidir.common.files import write_json
from research.paper.cells import polar_separation
from research.paper.experiments import Amount, Experiment
from research.paper.report import read_results, report_text

FLAT = Experiment(
    "flat", "Flat", {}, [1.0, 2.0], variants=["softmax", "tanhmax"], published={"softmax": {"gradient_tau": 0.84}}
)
DEEP = Experiment("deep", "Deep", {}, [1.0], kind="images", variants=["softmax", "tanhmax"])
TAU, ACCURACY = [0.5, 0.6, 0.7], [0.90, 0.91, 0.93]


def save(root, seeds=3, **changes):
    """Three seeds of two variants of two experiments; a change is a column of the second row."""
    rows = [
        {"data": one.name, "variant": variant, "rate": 1.0, "seed": seed, "chosen": True, "rows_train": 9,
         "test_accuracy": ACCURACY[seed] + 0.01 * (seed + 1) * (variant == "tanhmax"), "tau_|a|_gradient": TAU[seed],
         "permutation": 0.5, "versions": "torch 2.14", "machine": "a processor", "data_version": f"sha256:{one.name}"}
        for one in (FLAT, DEEP) for variant in one.variants for seed in range(3)
    ]  # fmt: skip
    rows[1] |= changes
    pd.DataFrame(rows).to_csv(root / "cells.csv", index=False)
    facts = {"seeds": seeds, "failures": [], "removed": {"validation": 1, "test": 2}}
    common = {"command": "--seeds 3", "quick": False, "data_dir": True, "rate_seeds": 3}
    write_json(
        root / "settings.json", {**common, "amount": vars(Amount()), "experiments": {"flat": facts, "deep": facts}}
    )
    return root


def row(report, start):
    return next(line for line in report.splitlines() if line.startswith(start))


def test_the_accuracy_of_seeds_is_compared_in_pairs(tmp_path):
    report = report_text(save(tmp_path), [FLAT, DEEP])
    # differences of 1, 2 and 3 points: mean 2, standard deviation 1, t(0.975, 2) = 4.303
    found = row(report, "| Flat | 9 | 1 / 2 | 3 |")
    assert "| 91.3 ± 1.5 | 93.3 ± 2.5 | +2.0 [-0.5, +4.5] |" in found


def test_the_papers_numbers_stand_above_ours(tmp_path):
    report = report_text(save(tmp_path), [FLAT, DEEP])
    papers, ours = (
        report.index(start) for start in ("| Flat | softmax, paper | 0.840 |", "| Flat | softmax | 0.600 ± 0.100 |")
    )
    assert papers < ours


def test_a_report_shows_the_rarer_sign(tmp_path):
    cells = pd.read_csv(save(tmp_path) / "cells.csv")
    shares = dict(zip(range(3), (0.1, 0.5, 0.9), strict=True))
    cells.assign(negative_share=cells["seed"].map(shares)).to_csv(tmp_path / "cells.csv", index=False)
    assert list(where(read_results(tmp_path, [FLAT, DEEP]).chosen, data="flat", variant="softmax")["rarer_sign"]) == (
        pytest.approx([0.1, 0.5, 0.1])
    )


def test_models_of_one_layer_and_deep_models_have_separate_tables(tmp_path):
    report = report_text(save(tmp_path), [FLAT, DEEP])
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## )", report, re.MULTILINE | re.DOTALL))
    for title, own, other in (
        ("Does the prediction change with the coefficients?", "| Flat |", "| Deep |"),
        ("Deep models", "| Deep |", "| Flat |"),
    ):
        assert own in sections[title]
        assert other not in sections[title]


def test_the_best_rate_at_an_end_of_those_tried_has_a_star(tmp_path):
    cells = pd.read_csv(save(tmp_path) / "cells.csv")
    tried = cells[cells["data"] == "flat"].assign(rate=2.0, chosen=False)
    pd.concat([cells, tried]).to_csv(tmp_path / "cells.csv", index=False)
    report = report_text(tmp_path, [FLAT, DEEP])
    assert "| Flat | 1 to 2 | 1 * of 2 | 1 * of 2 |" in report
    assert "| Deep | 1 | 1 of 1 | 1 of 1 |" in report


def test_missing_seeds_and_mixed_versions_are_refused(tmp_path):
    with pytest.raises(InputError, match="missing are flat, softmax: 3, 4"):
        read_results(save(tmp_path, seeds=5), [FLAT, DEEP])
    with pytest.raises(InputError, match=r"value of versions in the table; got torch 2\.14 and torch 2\.15"):
        read_results(save(tmp_path, versions="torch 2.15"), [FLAT, DEEP])
    with pytest.raises(
        InputError, match="expected one value of data_version in flat; got sha256:flat and sha256:other"
    ):
        read_results(save(tmp_path, data_version="sha256:other"), [FLAT, DEEP])


def test_polar_words_apart_from_neutral_ones_are_counted_in_standard_deviations():
    def entry(values):
        return [len(values), 0.0, sum(values), sum(v * v for v in values)]

    generator = np.random.default_rng(0)
    kinds = {"pos0": 0.5, "neg0": -0.3, "word0": 0.1}
    words = {word: entry(generator.normal(mean, 0.1, 2000)) for word, mean in kinds.items()}
    assert polar_separation(words) == pytest.approx({"polar_positive": 4, "polar_negative": -4}, rel=0.1)
    assert np.isnan(polar_separation({"pos0": words["pos0"]})["polar_negative"])


def test_rates_that_were_tried_on_another_machine_are_said_to_be(tmp_path):
    assert "a processor; torch 2.14\n" in report_text(save(tmp_path), [FLAT, DEEP])
    cells = pd.read_csv(tmp_path / "cells.csv")
    pd.concat([cells, cells.assign(chosen=False, machine="a GPU")]).to_csv(tmp_path / "cells.csv", index=False)
    report = report_text(tmp_path, [FLAT, DEEP])
    assert "a processor; torch 2.14. Models of learning rates that were not selected: a GPU; torch 2.14\n" in report
