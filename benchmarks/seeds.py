"""Means over seeds and paired comparisons of them: intervals, corrected p-values, equivalence; by scipy."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from operator import sub
from statistics import mean, stdev
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)
TESTED = ("difference", "p")  # headings of `Comparison.cells`


def mean_and_deviation(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard deviation, or the only value, with `digits` decimal places."""
    numbers = [mean(values), stdev(values)] if len(values) > 1 else values
    return " ± ".join(f"{number:.{digits}f}" for number in numbers)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % t interval of the mean over seeds; NaN for one seed."""
    from scipy.stats import ttest_1samp  # gpu.py does without scipy

    bounds = ttest_1samp(values, 0).confidence_interval()
    return float(bounds.low), float(bounds.high)


def mean_in_interval(values: Sequence[float], digits: int) -> str:
    """The mean, with its interval if the values differ."""
    low, high = interval(values) if len(set(values)) > 1 else (nan, nan)
    return f"{mean(values):.{digits}f}" + ("" if isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]")


@dataclass(frozen=True)
class Comparison:
    """A difference of means over seeds, made by `compare`.

    Attributes:
        first, second: one value per seed; values at the same place share data and initialisation.
        p_value: two-sided, of no difference; NaN with one seed or without any variation. `holm` corrects it.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]
    p_value: float

    @property
    def difference(self) -> float:
        """The difference of the means, in the unit of the values."""
        return mean(self.first) - mean(self.second)

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """The t interval of the difference; None where the p-value is not defined."""
        from scipy.stats import ttest_rel

        if isnan(self.p_value):
            return None
        bounds = ttest_rel(self.first, self.second).confidence_interval(confidence)
        return float(bounds.low), float(bounds.high)

    def margin(self) -> float | None:
        """The margin above which two one-sided tests at 95 % exclude every difference (Schuirmann 1987), if defined."""
        bounds = self.interval(0.9)
        return bounds and max(map(abs, bounds))

    def text(self, digits: int = 1) -> str:
        """The difference with its 95 % interval, if there is one; two more digits if the interval would round to 0."""
        bounds = self.interval()
        if bounds and not any(round(value, digits) for value in bounds):
            digits += 2
        values = [round(value, digits) for value in (self.difference, *(bounds or ()))]
        numbers = [f"{value:+.{digits}f}" if value else f"{0:.{digits}f}" for value in values]
        return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]" if bounds else numbers[0]

    def cells(self, digits: int = 1) -> list[str]:
        """The cells of a table under `TESTED`: difference with interval, and p-value; empty where not defined."""
        p_value = "" if isnan(self.p_value) else "< 0.001" if self.p_value < 0.001 else f"{self.p_value:.3f}"
        return [self.text(digits), p_value]


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compare two groups of values, one per seed, by Student's paired t test."""
    from scipy.stats import ttest_rel

    varies = len({round(difference, 12) for difference in map(sub, first, second)}) > 1
    return Comparison(tuple(first), tuple(second), float(ttest_rel(first, second).pvalue) if varies else nan)


def holm(comparisons: Mapping[Name, Comparison]) -> dict[Name, Comparison]:
    """The comparisons of a table with p-values corrected for their number (Holm 1979); undefined ones stay so.

    Comparisons of the same values, such as those of two measures that are equal by definition, count once.
    """
    tested = {_values(test): test.p_value for test in comparisons.values() if not isnan(test.p_value)}
    corrected, largest = {}, 0.0
    for rank, values in enumerate(sorted(tested, key=tested.__getitem__)):
        largest = max(largest, min(1.0, (len(tested) - rank) * tested[values]))
        corrected[values] = largest
    return {name: replace(test, p_value=corrected.get(_values(test), nan)) for name, test in comparisons.items()}


def _values(test: Comparison) -> tuple:
    """What is compared, to nine digits: measures that are equal by definition may be computed differently."""
    return tuple(tuple(float(f"{value:.9g}") for value in values) for values in (test.first, test.second))
