"""Means over seeds and comparisons of them: intervals, corrected p-values, equivalence, effect sizes; by scipy."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from operator import sub
from statistics import mean, stdev, variance
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)
TESTED = ("difference", "p", "g")  # headings of `Comparison.cells`
TESTED_BY_SEED = (
    "Differences: 95 % t interval over seeds, which share data and initialisation (paired), not corrected for "
    "the number of comparisons; p: Student's paired t test, corrected over the table (Holm); g: Hedges' g, in standard "
    "deviations of the paired differences, which measures how consistent a difference is, not how large."
)


def mean_and_deviation(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard deviation, or the only value, with `digits` decimal places."""
    numbers = [mean(values), stdev(values)] if len(values) > 1 else values
    return " ± ".join(f"{number:.{digits}f}" for number in numbers)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % t interval of the mean over seeds; NaN for one seed."""
    from scipy.stats import ttest_1samp  # gpu.py does without scipy

    found = ttest_1samp(values, 0).confidence_interval()
    return float(found.low), float(found.high)


def mean_in_interval(values: Sequence[float], digits: int) -> str:
    """The mean, with its interval if the values differ."""
    low, high = interval(values) if len(set(values)) > 1 else (nan, nan)
    return f"{mean(values):.{digits}f}" + ("" if isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]")


@dataclass(frozen=True)
class Comparison:
    """A difference of means over seeds, `mean(first) - mean(second)`, made by `compare`.

    Attributes:
        first, second: one value per seed.
        paired: the values at the same place share data and initialisation.
        p_value: two-sided, of no difference; NaN with one seed or without any variation. `holm` corrects it.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]
    paired: bool
    p_value: float

    @property
    def difference(self) -> float:
        """The difference of the means, in the unit of the values."""
        return mean(self.first) - mean(self.second)

    @property
    def effect(self) -> float | None:
        """Hedges' g: the difference in standard deviations, of the paired differences or pooled over both groups.

        Corrected for the bias of few seeds by 1 - 3 / (4 f - 1) with f degrees of freedom (Hedges 1981). None where
        there is no deviation or one seed.
        """
        if min(len(self.first), len(self.second)) < 2:
            return None
        if self.paired:
            deviation, freedom = stdev(map(sub, self.first, self.second)), len(self.first) - 1
        else:
            deviation = ((variance(self.first) + variance(self.second)) / 2) ** 0.5
            freedom = len(self.first) + len(self.second) - 2
        return (1 - 3 / (4 * freedom - 1)) * self.difference / deviation if deviation else None

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """The t interval of the difference; None where the p-value is not defined.

        Welch's, which assumes neither equal variances nor equal numbers, unless the values are paired.
        """
        if isnan(self.p_value):
            return None
        found = _test(self.first, self.second, self.paired).confidence_interval(confidence)
        return float(found.low), float(found.high)

    def within(self, margin: float, confidence: float = 0.95) -> bool:
        """Whether the means are equivalent: both one-sided tests exclude a difference of `margin` or more.

        Equal to an interval of confidence `2 confidence - 1` inside the margin (Schuirmann 1987).
        """
        interval = self.interval(2 * confidence - 1)
        return interval is not None and -margin < interval[0] and interval[1] < margin

    def text(self, digits: int = 1) -> str:
        """The difference with its 95 % interval, if there is one; two more digits if the interval would round to 0."""
        interval = self.interval()
        if interval and not any(round(value, digits) for value in interval):
            digits += 2
        values = [round(value, digits) for value in (self.difference, *(interval or ()))]
        numbers = [f"{value:+.{digits}f}" if value else f"{0:.{digits}f}" for value in values]
        return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]" if interval else numbers[0]

    def cells(self, digits: int = 1) -> list[str]:
        """The cells of a table under `TESTED`: difference with interval, p-value, and g; empty where not defined."""
        p_value = "" if isnan(self.p_value) else "< 0.001" if self.p_value < 0.001 else f"{self.p_value:.3f}"
        return [self.text(digits), p_value, "" if self.effect is None else f"{self.effect:+.1f}"]


def compare(first: Sequence[float], second: Sequence[float], paired: bool = False) -> Comparison:
    """Compare two groups of values, one per seed, by Student's paired t test or by Welch's.

    Raises:
        ValueError: an empty group, or paired groups of unequal sizes.
    """
    sizes = len(first), len(second)
    if not all(sizes):
        raise ValueError(f"expected at least one value in each group; got {sizes[0]} and {sizes[1]}.")
    if paired and sizes[0] != sizes[1]:
        raise ValueError(f"paired values need equal numbers; got {sizes[0]} and {sizes[1]}.")
    # a test needs variance, that of the differences if paired
    groups = [[round(difference, 12) for difference in map(sub, first, second)]] if paired else [first, second]
    varies = min(sizes) > 1 and any(len(set(group)) > 1 for group in groups)
    p_value = float(_test(first, second, paired).pvalue) if varies else nan
    return Comparison(tuple(first), tuple(second), paired, p_value)


def holm(comparisons: Mapping[Name, Comparison]) -> dict[Name, Comparison]:
    """The comparisons of a table with p-values corrected for their number (Holm 1979); undefined ones stay so.

    Comparisons of the same values, such as those of two measures that are equal by definition, count once.
    """
    tested = {_values(one): one.p_value for one in comparisons.values() if not isnan(one.p_value)}
    corrected, largest = {}, 0.0
    for rank, values in enumerate(sorted(tested, key=tested.__getitem__)):
        largest = max(largest, min(1.0, (len(tested) - rank) * tested[values]))
        corrected[values] = largest
    return {name: replace(one, p_value=corrected.get(_values(one), nan)) for name, one in comparisons.items()}


def _values(one: Comparison) -> tuple:
    """What is compared, to nine digits: measures that are equal by definition may be computed differently."""
    first, second = (tuple(float(f"{value:.9g}") for value in values) for values in (one.first, one.second))
    return one.paired, first, second


def _test(first: Sequence[float], second: Sequence[float], paired: bool) -> Any:
    from scipy.stats import ttest_ind, ttest_rel

    return ttest_rel(first, second) if paired else ttest_ind(first, second, equal_var=False)
