"""Two sequence-to-sequence tasks with known alignment: sorting numbers, and converting dates to ISO 8601.

With `length`, the numbers or the date stand among filler words, so that a decoder has to find them in a longer source.
"""

from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
from datasets import Dataset

from hf_bidir.finetune.data.tokenizer import words_of

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
FILLERS = [f"word{number}" for number in range(100)]
LENGTHS = (20, 40, 80)


@dataclass(frozen=True)
class Pairs:
    """The number of rows of each split.

    Attributes:
        train, validation, test: the numbers.
        length: words and punctuation marks of every source, which is filled up by random words; None adds none.
    """

    train: int
    validation: int
    test: int
    length: int | None = None

    def split(self, seed: int = 0) -> dict[str, Dataset]:
        """Train, validation and test, with the columns `source` and `target`; the same for a seed."""
        sizes = {"train": self.train, "validation": self.validation, "test": self.test}
        generator = np.random.default_rng(seed)
        parts, targets = self._rows(generator, sum(sizes.values()))
        sources = [" ".join(row) if self.length is None else hide(row, self.length, generator) for row in parts]
        ends = np.cumsum(list(sizes.values())).tolist()
        return {
            name: Dataset.from_dict({"source": sources[end - size : end], "target": targets[end - size : end]})
            for (name, size), end in zip(sizes.items(), ends, strict=True)
        }

    def _rows(self, generator: np.random.Generator, rows: int) -> tuple[list[list[str]], list[str]]:
        """The parts of every source, between which fillers may stand, and the targets."""
        raise NotImplementedError


@dataclass(frozen=True)
class NumberSorting(Pairs):
    """`count` numbers from 0 to 99, and the same in ascending order: "42 7 7" to "7 7 42"."""

    count: int = 8

    def _rows(self, generator: np.random.Generator, rows: int) -> tuple[list[list[str]], list[str]]:
        numbers = generator.integers(100, size=(rows, self.count))
        ordered = np.sort(numbers, axis=1).astype(str).tolist()
        return numbers.astype(str).tolist(), [" ".join(row) for row in ordered]


@dataclass(frozen=True)
class DateNormalisation(Pairs):
    """A day of the years 1900 to 2099 in one of eight formats, and in ISO 8601.

    "the 5th of March 1998" to "1998-03-05". Numeric dates with dots have the day first, those with
    slashes second. No day is in two splits, so all test days are new.
    """

    def _rows(self, generator: np.random.Generator, rows: int) -> tuple[list[list[str]], list[str]]:
        days = generator.choice((LAST_DAY - FIRST_DAY).days + 1, size=rows, replace=False)
        formats = generator.integers(len(FORMATS), size=rows)
        dates = [FIRST_DAY + timedelta(days=day) for day in days.tolist()]
        sources = [[write_day(day, FORMATS[index])] for day, index in zip(dates, formats, strict=True)]
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


def hide(parts: list[str], length: int, generator: np.random.Generator) -> str:
    """The parts in their order at random places of a text of `length` words, the others from `FILLERS`."""
    fillers = length - sum(len(words_of(part)) for part in parts)
    places = np.sort(generator.integers(fillers + 1, size=len(parts)))  # the number of fillers before each part
    words = [FILLERS[index] for index in generator.integers(len(FILLERS), size=fillers)]
    for place, part in reversed([*zip(places.tolist(), parts, strict=True)]):
        words.insert(place, part)
    return " ".join(words)


PAIRS = {
    "sorting": NumberSorting(train=50_000, validation=2000, test=2000),
    "dates": DateNormalisation(train=20_000, validation=2000, test=2000),
} | {
    f"{name}-{length}": pairs(train=10_000, validation=1000, test=1000, length=length, **more)
    for name, pairs, more in (("sorting", NumberSorting, {"count": 5}), ("dates", DateNormalisation, {}))
    for length in LENGTHS
}
