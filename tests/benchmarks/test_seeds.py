"""Comparisons over seeds against closed formulas, and how often their intervals cover the true difference."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp, ttest_rel

from benchmarks.seeds import compare, holm, mean_and_deviation, mean_in_interval

FIRST, SECOND = [81.2, 80.9, 81.5, 81.1], [80.8, 81.0, 80.2, 80.5]


def test_the_paired_interval_is_students_formula():
    differences = np.subtract(FIRST, SECOND)
    half = t.ppf(0.975, 3) * differences.std(ddof=1) / 2
    assert compare(FIRST, SECOND, paired=True).interval() == pytest.approx(
        (differences.mean() - half, differences.mean() + half)
    )


def test_the_unpaired_interval_is_welchs_formula():
    parts = [np.var(values, ddof=1) / len(values) for values in (FIRST, SECOND[:3])]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    centre, half = np.mean(FIRST) - np.mean(SECOND[:3]), t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    assert compare(FIRST, SECOND[:3]).interval() == pytest.approx((centre - half, centre + half))


@pytest.mark.parametrize("paired", [True, False])
def test_95_percent_intervals_cover_the_true_difference_in_95_percent_of_simulations(paired):
    generator, trials = np.random.default_rng(0), 400
    groups = generator.normal([[[0.0]], [[0.3]]], 1.0, (2, trials, 4))
    found = [compare(first, second, paired).interval() for first, second in zip(*groups, strict=True)]
    covered = sum(low <= -0.3 <= high for low, high in found) / trials
    assert 0.92 <= covered <= 0.98


def test_one_seed_or_values_without_variation_give_no_interval_and_no_effect():
    one = compare([81.0], [80.0])
    assert (one.interval(), one.effect, one.within(5), one.text()) == (None, None, False, "+1.0")
    assert mean_and_deviation([81.04]) == "81.0"
    assert compare([1.0, 1.0], [1.0, 1.0]).interval() is compare([1.0, 2.0], [1.0, 2.0], True).interval() is None


def test_pairs_need_equal_numbers_and_groups_at_least_one_value():
    with pytest.raises(ValueError, match="got 4 and 3"):
        compare(FIRST, SECOND[:3], paired=True)
    with pytest.raises(ValueError, match="at least one value in each group; got 4 and 0"):
        compare(FIRST, [])


def test_equivalence_is_two_one_sided_tests():
    one, differences = compare(FIRST, SECOND, paired=True), np.subtract(FIRST, SECOND)
    for margin in np.linspace(0.1, 2.5, 25):
        below = ttest_1samp(differences, margin, alternative="less").pvalue
        above = ttest_1samp(differences, -margin, alternative="greater").pvalue
        assert one.within(margin) == (max(below, above) < 0.05)


def test_the_effect_is_the_difference_in_standard_deviations_corrected_for_few_seeds():
    differences = np.subtract(FIRST, SECOND)
    paired = (1 - 3 / 11) * differences.mean() / differences.std(ddof=1)
    assert compare(FIRST, SECOND, paired=True).effect == pytest.approx(paired)
    pooled = math.sqrt((np.var(FIRST, ddof=1) + np.var(SECOND, ddof=1)) / 2)
    assert compare(FIRST, SECOND).effect == pytest.approx((1 - 3 / 23) * differences.mean() / pooled)


def with_p_value(first, second, p_value):
    return replace(compare(first, second), p_value=p_value)


def test_holm_multiplies_the_smallest_p_value_by_their_number_and_never_reverses_the_order():
    p_values = {"a": 0.01, "b": 0.04, "c": 0.03, "d": math.nan}
    found = holm({name: with_p_value([value], [0.0], value) for name, value in p_values.items()})
    assert [one.p_value for one in found.values()] == pytest.approx([0.03, 0.06, 0.06, math.nan], nan_ok=True)


def test_holm_counts_equal_comparisons_once_and_groups_that_are_divided_otherwise_each():
    one, other = with_p_value([0.1], [0.0], 0.01), with_p_value([0.2], [0.0], 0.03)
    found = holm({"erasure": one, "the same by another name": one, "other": other})
    assert [one.p_value for one in found.values()] == pytest.approx([0.02, 0.02, 0.03])
    found = holm({"a": with_p_value([1.0], [2.0, 3.0], 0.02), "b": with_p_value([1.0, 2.0], [3.0], 0.03)})
    assert [one.p_value for one in found.values()] == pytest.approx([0.04, 0.04])


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ([1.0, 2.0], [0.0, 2.0], "+0.5 [-5.9, +6.9]"),
        ([1.0, 2.0, 3.0], [1.1, 2.1, 2.9], "0.0 [-0.3, +0.3]"),  # a zero has no sign
        ([1.0, 2.0, 3.0], [1.01, 2.02, 3.0], "-0.010 [-0.035, +0.015]"),  # not rounded to nothing
    ],
)
def test_a_comparison_is_printed_with_its_interval(first, second, text):
    assert compare(first, second, paired=True).text() == text


def test_the_cells_of_a_comparison_are_difference_p_value_and_effect():
    p_value = f"{ttest_rel(FIRST, SECOND).pvalue:.3f}"
    assert compare(FIRST, SECOND, paired=True).cells() == ["+0.5 [-0.4, +1.5]", p_value, "+0.7"]
    assert compare([1.0], [0.5]).cells() == ["+0.5", "", ""]


def test_the_interval_of_a_mean_is_students():
    values = [0.1, 0.4, 0.3]
    low, high = t.interval(0.95, 2, np.mean(values), np.std(values, ddof=1) / 3**0.5)
    assert mean_in_interval(values, 4) == f"{np.mean(values):.4f} [{low:.4f}, {high:.4f}]"
    assert mean_in_interval([0.1], 4) == "0.1000"
