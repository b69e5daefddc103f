"""Means over seeds, and intervals of their differences; computed by scipy."""

from collections.abc import Sequence
from statistics import mean, stdev

from hf_bidir.common.extras import extra


def rounded(value: float) -> str:
    """Four decimal places; four digits of a number that they would show as 0."""
    return f"{value:.4f}" if abs(value) >= 1e-3 or value == 0 else f"{value:.4g}"


def mean_and_deviation(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard deviation, or the only value, with `digits` decimal places."""
    numbers = [mean(values), stdev(values)] if len(values) > 1 else values
    return " ± ".join(f"{number:.{digits}f}" for number in numbers)


def difference_interval(
    first: Sequence[float], second: Sequence[float], paired: bool = False, confidence: float = 0.95
) -> tuple[float, float] | None:
    """The t interval of `mean(first) - mean(second)`; None if a group has one value, which gives no interval.

    Args:
        first, second: one value per seed.
        paired: the values at the same place share data and initialisation; otherwise Welch's interval, which assumes
            neither equal variances nor equal numbers.

    Raises:
        ValueError: paired groups of unequal sizes.
    """
    with extra("explain"):
        from scipy.stats import ttest_1samp, ttest_ind
    if paired and len(first) != len(second):
        raise ValueError(f"paired values need equal numbers; got {len(first)} and {len(second)}.")
    if min(len(first), len(second)) < 2:
        return None
    if paired:
        found = ttest_1samp([one - other for one, other in zip(first, second, strict=True)], 0.0)
    else:
        found = ttest_ind(first, second, equal_var=False)
    interval = found.confidence_interval(confidence)
    return float(interval.low), float(interval.high)
