"""Comparisons over seeds against closed formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp, ttest_rel

from benchmarks.seeds import compare, holm, mean_and_deviation, mean_in_interval

FIRST, SECOND = [81.2, 80.9, 81.5, 81.1], [80.8, 81.0, 80.2, 80.5]
DIFFERENCES = np.subtract(FIRST, SECOND)


def test_the_interval_is_students_formula_for_pairs():
    half = t.ppf(0.975, 3) * DIFFERENCES.std(ddof=1) / 2
    mean = DIFFERENCES.mean()
    assert compare(FIRST, SECOND).interval() == pytest.approx((mean - half, mean + half))


def test_one_seed_or_values_without_variation_give_no_interval():
    single = compare([81.0], [80.0])
    assert (single.interval(), single.margin(), single.cells()) == (None, None, ["+1.0", ""])
    assert mean_and_deviation([81.04]) == "81.0"
    assert compare([1.0, 2.0], [1.0, 2.0]).interval() is None


def test_the_margin_is_the_smallest_that_two_one_sided_tests_confirm():
    margin = compare(FIRST, SECOND).margin()
    for factor, shown in ((1.001, True), (0.999, False)):
        below = ttest_1samp(DIFFERENCES, factor * margin, alternative="less").pvalue
        above = ttest_1samp(DIFFERENCES, -factor * margin, alternative="greater").pvalue
        assert (max(below, above) < 0.05) == shown


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ({"a": 0.01, "b": 0.04, "c": 0.03, "d": math.nan}, [0.03, 0.06, 0.06, math.nan]),  # never reverses the order
        ({"a": 0.01, "A": 0.01, "c": 0.03}, [0.02, 0.02, 0.03]),  # equal comparisons count once
    ],
)
def test_holm_multiplies_the_smallest_p_value_by_the_number_of_different_comparisons(p_values, corrected):
    tests = {name: replace(compare([value], [0.0]), p_value=value) for name, value in p_values.items()}
    assert [test.p_value for test in holm(tests).values()] == pytest.approx(corrected, nan_ok=True)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ([1.0, 2.0], [0.0, 2.0], "+0.5 [-5.9, +6.9]"),
        ([1.0, 2.0, 3.0], [1.1, 2.1, 2.9], "0.0 [-0.3, +0.3]"),  # a zero has no sign
        ([1.0, 2.0, 3.0], [1.01, 2.02, 3.0], "-0.010 [-0.035, +0.015]"),  # not rounded to nothing
    ],
)
def test_a_comparison_is_printed_with_its_interval_and_p_value(first, second, text):
    assert compare(first, second).cells() == [text, f"{ttest_rel(first, second).pvalue:.3f}"]


def test_the_interval_of_a_mean_is_students():
    low, high = t.interval(0.95, 3, np.mean(FIRST), np.std(FIRST, ddof=1) / 2)
    assert mean_in_interval(FIRST, 4) == f"{np.mean(FIRST):.4f} [{low:.4f}, {high:.4f}]"
    assert mean_in_interval([0.1], 4) == "0.1000"
