"""Rows of runs: how they are added, what a table refuses, and comparisons over seeds against scipy."""

import pytest
from scipy.stats import ttest_rel

from benchmarks.runs import add_runs, check_runs, comparisons, has_run, read_runs, spread, where

KEY = ("task", "variant", "seed")
SCORES = {
    ("sst2", "softmax"): (0.8, 0.81, 0.82), ("sst2", "tanhmax"): (0.8, 0.813, 0.832),
    ("imdb", "softmax"): (0.7, 0.71, 0.72), ("imdb", "tanhmax"): (0.7, 0.713, 0.732),
}  # fmt: skip


def run_of(task="sst2", variant="softmax", seed=0, accuracy=0.8, **versions):
    row = {"task": task, "variant": variant, "seed": seed, "accuracy": accuracy}
    return row | {"versions": "torch 2.14", "data_version": f"sha256:{task}"} | versions


@pytest.fixture
def file(tmp_path):
    rows = [run_of(*key, seed, score) for key, scores in SCORES.items() for seed, score in enumerate(scores)]
    add_runs(tmp_path / "runs.csv", rows, KEY)
    return tmp_path / "runs.csv"


def test_a_row_replaces_the_row_of_the_same_run(file):
    add_runs(file, [run_of(seed=2, accuracy=0.9)], KEY)
    runs = read_runs(file)
    assert len(runs) == 12
    assert list(where(runs, task="sst2", variant="softmax")["accuracy"]) == [0.8, 0.81, 0.9]


def test_a_run_is_found_by_its_settings(file):
    assert has_run(file, task="sst2", seed=2)
    assert not has_run(file, task="sst2", seed=3)
    assert not has_run(file, task="sst2", learning_rate=1)
    assert not has_run(file.with_name("none.csv"), task="sst2")


def test_missing_seeds_are_named_and_no_rows_are_refused(file, tmp_path):
    check_runs(read_runs(file), ["task", "variant"], 3)
    with pytest.raises(ValueError, match=r"imdb, softmax: 3, 4; .*sst2, tanhmax: 3, 4"):
        check_runs(read_runs(file), ["task", "variant"], 5)
    with pytest.raises(ValueError, match="the file has none"):
        check_runs(read_runs(tmp_path / "none.csv"), ["task"], 1)


@pytest.mark.parametrize("version", [{"versions": "torch 2.15"}, {"data_version": "sha256:other"}], ids="".join)
def test_mixed_versions_of_code_or_data_are_refused(file, version):
    add_runs(file, [run_of(**version)], KEY)
    ((column, value),) = version.items()
    with pytest.raises(ValueError, match=f"expected one value of {column}.*{value}"):
        check_runs(read_runs(file), ["task", "variant"], 3)


def test_comparisons_are_paired_by_seed_and_corrected_over_the_table(file):
    found = comparisons(read_runs(file), ["task"], "variant", ("tanhmax", "softmax"), {"accuracy": 100})
    first, second = ([100 * score for score in SCORES["sst2", name]] for name in ("tanhmax", "softmax"))
    expected = ttest_rel(first, second)
    comparison = found["sst2", "accuracy"]
    assert comparison.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert comparison.p_value == pytest.approx(2 * expected.pvalue)  # two comparisons with equal p-values


def test_a_spread_says_how_many_runs_have_the_number(file):
    add_runs(file, [run_of(accuracy=None)], KEY)
    assert spread(where(read_runs(file), task="sst2", variant="softmax"), "accuracy", 100) == "81.5 ± 0.7 (2 of 3)"
