"""Intervals over seeds against closed formulas, and how often they cover the true difference."""

import math

import numpy as np
import pytest
from scipy.stats import t

from hf_bidir.common.statistics import difference_interval, mean_and_deviation

FIRST, SECOND = [81.2, 80.9, 81.5, 81.1], [80.8, 81.0, 80.2, 80.5]


def test_the_paired_interval_is_students_formula():
    differences = np.subtract(FIRST, SECOND)
    half = t.ppf(0.975, 3) * differences.std(ddof=1) / 2
    assert difference_interval(FIRST, SECOND, paired=True) == pytest.approx(
        (differences.mean() - half, differences.mean() + half)
    )


def test_the_unpaired_interval_is_welchs_formula():
    parts = [np.var(values, ddof=1) / len(values) for values in (FIRST, SECOND[:3])]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    centre, half = np.mean(FIRST) - np.mean(SECOND[:3]), t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    assert difference_interval(FIRST, SECOND[:3]) == pytest.approx((centre - half, centre + half))


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_95_percent_intervals_cover_the_true_difference_in_95_percent_of_simulations(seeds, paired):
    generator, trials = np.random.default_rng(seeds), 3000
    groups = generator.normal([[[0.0]], [[0.3]]], 1.0, (2, trials, seeds))
    found = [difference_interval(first, second, paired) for first, second in zip(*groups, strict=True)]
    covered = sum(low <= -0.3 <= high for low, high in found) / trials
    assert 0.93 <= covered <= 0.97


def test_one_seed_gives_no_interval_and_no_deviation():
    assert difference_interval([81.0], [80.0]) is None
    assert mean_and_deviation([81.04]) == "81.0"


def test_pairs_need_equal_numbers():
    with pytest.raises(ValueError, match="got 4 and 3"):
        difference_interval(FIRST, SECOND[:3], paired=True)
