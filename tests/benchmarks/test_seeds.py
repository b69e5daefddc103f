"""Comparisons over seeds against closed formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp, ttest_rel

from benchmarks.seeds import compare, holm, mean_and_deviation, mean_in_interval

FIRST, SECOND = [81.2, 80.9, 81.5, 81.1], [80.8, 81.0, 80.2, 80.5]


def test_the_interval_is_students_formula_for_pairs():
    differences = np.subtract(FIRST, SECOND)
    half = t.ppf(0.975, 3) * differences.std(ddof=1) / 2
    assert compare(FIRST, SECOND).interval() == pytest.approx((differences.mean() - half, differences.mean() + half))


def test_one_seed_or_values_without_variation_give_no_interval():
    single = compare([81.0], [80.0])
    assert (single.interval(), single.margin(), single.text()) == (None, None, "+1.0")
    assert mean_and_deviation([81.04]) == "81.0"
    assert compare([1.0, 2.0], [1.0, 2.0]).interval() is None
    assert compare([1.0], [0.5]).cells() == ["+0.5", ""]


def test_the_margin_is_the_smallest_that_two_one_sided_tests_confirm():
    differences = np.subtract(FIRST, SECOND)
    margin = compare(FIRST, SECOND).margin()
    for factor, shown in ((1.001, True), (0.999, False)):
        below = ttest_1samp(differences, factor * margin, alternative="less").pvalue
        above = ttest_1samp(differences, -factor * margin, alternative="greater").pvalue
        assert (max(below, above) < 0.05) == shown


def with_p_value(first, second, p_value):
    return replace(compare(first, second), p_value=p_value)


def test_holm_multiplies_the_smallest_p_value_by_their_number_and_never_reverses_the_order():
    p_values = {"a": 0.01, "b": 0.04, "c": 0.03, "d": math.nan}
    tests = holm({name: with_p_value([value], [0.0], value) for name, value in p_values.items()})
    assert [test.p_value for test in tests.values()] == pytest.approx([0.03, 0.06, 0.06, math.nan], nan_ok=True)


def test_holm_counts_equal_comparisons_once():
    test, other = with_p_value([0.1], [0.0], 0.01), with_p_value([0.2], [0.0], 0.03)
    tests = holm({"erasure": test, "the same by another name": test, "other": other})
    assert [test.p_value for test in tests.values()] == pytest.approx([0.02, 0.02, 0.03])


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
    values = [0.1, 0.4, 0.3]
    low, high = t.interval(0.95, 2, np.mean(values), np.std(values, ddof=1) / 3**0.5)
    assert mean_in_interval(values, 4) == f"{np.mean(values):.4f} [{low:.4f}, {high:.4f}]"
    assert mean_in_interval([0.1], 4) == "0.1000"
