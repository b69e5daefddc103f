"""Rows of runs: how they are added, what a table refuses, and comparisons over seeds against scipy."""

import pytest
from scipy.stats import ttest_rel

from benchmarks.runs import add_runs, check_runs, comparisons, has_run, listing, read_runs, spread, where
from hf_bidir.common.errors import InputError

KEY = ("task", "variant", "seed")


@pytest.fixture
def file(tmp_path):
    rows = [
        {"task": task, "variant": variant, "seed": seed, "accuracy": base + 0.01 * seed + 0.003 * seed**2 * weight,
         "versions": "torch 2.14", "data_version": f"sha256:{task}"}
        for task, base in (("sst2", 0.8), ("imdb", 0.7))
        for weight, variant in enumerate(("softmax", "tanhmax")) for seed in range(3)
    ]  # fmt: skip
    add_runs(tmp_path / "runs.csv", rows, KEY)
    return tmp_path / "runs.csv"


def test_a_row_replaces_the_row_of_the_same_run(file):
    add_runs(file, [{"task": "sst2", "variant": "softmax", "seed": 2, "accuracy": 0.9}], KEY)
    runs = read_runs(file)
    assert len(runs) == 12
    assert list(where(runs, task="sst2", variant="softmax")["accuracy"]) == pytest.approx([0.8, 0.81, 0.9])


def test_a_run_is_found_by_its_settings(file):
    assert has_run(file, task="sst2", seed=2)
    assert not has_run(file, task="sst2", seed=3)
    assert not has_run(file.with_name("none.csv"), task="sst2")


def test_complete_rows_of_one_version_may_share_a_table(file):
    check_runs(read_runs(file), ["task", "variant"], 3)


def test_missing_seeds_are_named_and_no_rows_are_refused(file, tmp_path):
    with pytest.raises(InputError, match=r"imdb, softmax: 3, 4; .*sst2, tanhmax: 3, 4"):
        check_runs(read_runs(file), ["task", "variant"], 5)
    with pytest.raises(InputError, match="the file has none"):
        check_runs(read_runs(tmp_path / "none.csv"), ["task"], 1)


@pytest.mark.parametrize(("column", "value"), [("versions", "torch 2.15"), ("data_version", "sha256:other")])
def test_mixed_versions_of_code_or_data_are_refused(file, column, value):
    run = {"task": "sst2", "variant": "softmax", "seed": 0, "accuracy": 0.8, column: value}
    add_runs(file, [run], KEY)
    with pytest.raises(InputError, match=f"expected one value of {column}.*{value}"):
        check_runs(read_runs(file), ["task", "variant"], 3)


def test_comparisons_are_paired_by_seed_and_corrected_over_the_table(file):
    runs = read_runs(file)
    found = comparisons(runs, ["task"], "variant", ("tanhmax", "softmax"), {"accuracy": 100})
    first, second = (where(runs, task="sst2", variant=name)["accuracy"] for name in ("tanhmax", "softmax"))
    expected = ttest_rel(100 * first, 100 * second)
    one = found["sst2", "accuracy"]
    assert one.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert one.p_value == pytest.approx(2 * expected.pvalue)  # two comparisons with equal p-values


def test_a_spread_says_how_many_runs_have_the_number(file):
    add_runs(file, [{"task": "sst2", "variant": "softmax", "seed": 0, "accuracy": None}], KEY)
    assert spread(where(read_runs(file), task="sst2", variant="softmax"), "accuracy", 100) == "81.5 ± 0.7 (2 of 3)"


def test_a_listing_has_the_columns_of_the_chosen_runs_that_have_numbers(file):
    columns = {"seed": ("seed", "{}"), "accuracy": ("accuracy", "{:.0%}"), "versions": ("versions", "{}")}
    runs = read_runs(file).assign(versions=None)
    text = "| seed | accuracy |\n| --- | --- |\n| 0 | 80% |\n| 1 | 81% |\n| 2 | 82% |"
    assert listing(runs, columns, task="sst2", variant="softmax") == text
