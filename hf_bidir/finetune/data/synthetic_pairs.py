"""Two sequence-to-sequence tasks with known alignment: sorting numbers, and converting dates to ISO 8601."""

from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
from datasets import Dataset

FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)
ORDINALS = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
MONTHS = [date(2000, month, 1).strftime("%B") for month in range(1, 13)]
WEEKDAYS = [date(2001, 1, day).strftime("%A") for day in range(1, 8)]  # the year began on a Monday
FORMATS = (
    "{day} {month} {year}",
    "{month} {day}, {year}",
    "the {day}{ordinal} of {month} {year}",
    "{weekday}, {month} {day}, {year}",
    "{weekday:.3} {day} {month:.3} {year}",
    "{day:02}.{number:02}.{year}",
    "{number:02}/{day:02}/{year}",
    "{day}-{month:.3}-{year}",
)


@dataclass(frozen=True)
class Pairs:
    """The number of rows of each split."""

    train: int
    validation: int
    test: int

    def split(self, seed: int = 0) -> dict[str, Dataset]:
        """Train, validation and test, with the columns `source` and `target`; the same for a seed."""
        sizes = {"train": self.train, "validation": self.validation, "test": self.test}
        sources, targets = self._rows(np.random.default_rng(seed), sum(sizes.values()))
        ends = np.cumsum(list(sizes.values())).tolist()
        return {
            name: Dataset.from_dict({"source": sources[end - size : end], "target": targets[end - size : end]})
            for (name, size), end in zip(sizes.items(), ends, strict=True)
        }

    def _rows(self, generator: np.random.Generator, rows: int) -> tuple[list[str], list[str]]:
        raise NotImplementedError


@dataclass(frozen=True)
class NumberSorting(Pairs):
    """`count` numbers from 0 to 99, and the same in ascending order: "42 7 7" to "7 7 42"."""

    count: int = 8

    def _rows(self, generator: np.random.Generator, rows: int) -> tuple[list[str], list[str]]:
        numbers = generator.integers(100, size=(rows, self.count))
        ordered = np.sort(numbers, axis=1)
        texts, targets = ([" ".join(map(str, row)) for row in each.tolist()] for each in (numbers, ordered))
        return texts, targets


@dataclass(frozen=True)
class DateNormalisation(Pairs):
    """A day of the years 1900 to 2099 in one of eight formats, and in ISO 8601.

    "the 5th of March 1998" to "1998-03-05". Numeric dates with dots have the day first, those with
    slashes second. No day is in two splits, so all test days are new.
    """

    def _rows(self, generator: np.random.Generator, rows: int) -> tuple[list[str], list[str]]:
        days = generator.choice((LAST_DAY - FIRST_DAY).days + 1, size=rows, replace=False)
        formats = generator.integers(len(FORMATS), size=rows)
        dates = [FIRST_DAY + timedelta(days=day) for day in days.tolist()]
        sources = [write_day(day, FORMATS[index]) for day, index in zip(dates, formats, strict=True)]
        return sources, [day.isoformat() for day in dates]


def write_day(day: date, form: str) -> str:
    """A day in one of `FORMATS`."""
    return form.format(
        day=day.day,
        ordinal=ORDINALS.get(day.day, "th"),
        number=day.month,
        month=MONTHS[day.month - 1],
        weekday=WEEKDAYS[day.weekday()],
        year=day.year,
    )


PAIRS = {
    "sorting": NumberSorting(train=50_000, validation=2000, test=2000),
    "dates": DateNormalisation(train=20_000, validation=2000, test=2000),
}
