"""The synthetic pairs: targets that are right, and test days that training has not seen."""

from dataclasses import replace
from datetime import date

import pytest

from hf_bidir.finetune.data.tokenizer import words_of
from research.mechanisms.data import (
    FILLERS,
    FORMATS,
    DateNormalisation,
    NumberSorting,
    write_day,
)

DATES = DateNormalisation(train=300, validation=40, test=60)


def test_the_target_is_the_source_in_order():
    for split in NumberSorting(train=50, validation=5, test=5).split().values():
        for row in split:
            numbers = [int(number) for number in row["source"].split()]
            assert len(numbers) == 8
            assert [int(number) for number in row["target"].split()] == sorted(numbers)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("the 1st of January 1900", "1900-01-01"),
        ("the 22nd of May 2001", "2001-05-22"),
        ("the 13th of June 1999", "1999-06-13"),
        ("Tuesday, February 29, 2000", "2000-02-29"),
        ("Thu 5 Mar 1998", "1998-03-05"),
        ("05.03.1998", "1998-03-05"),
        ("03/05/1998", "1998-03-05"),
        ("5-Mar-1998", "1998-03-05"),
    ],
)
def test_days_are_written_as_people_write_them(source, target):
    day = date.fromisoformat(target)
    assert source in {write_day(day, form) for form in FORMATS}


def test_no_day_is_in_two_splits():
    splits = DATES.split()
    days = [set(split["target"]) for split in splits.values()]
    assert sum(map(len, days)) == len(set.union(*days)) == 400


@pytest.mark.parametrize("pairs", [replace(DATES, length=20), NumberSorting(20, 2, 2, length=20, count=5)])
def test_sources_of_a_given_length_hide_the_same_numbers_or_dates_among_other_words(pairs):
    plain, hidden = replace(pairs, length=None).split()["test"], pairs.split()["test"]
    for short, long in zip(plain, hidden, strict=True):
        words = words_of(long["source"])
        assert len(words) == 20
        assert [word for word in words if word not in FILLERS] == words_of(short["source"])
        assert long["target"] == short["target"]
