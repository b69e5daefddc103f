"""Columns and rows that cannot be used: an error names them, or rows are left out."""

import logging
from collections import defaultdict
from typing import TYPE_CHECKING

from datasets import Dataset

from hf_bidir.common.errors import InputError, did_you_mean

from ..arguments import SourceArguments

if TYPE_CHECKING:
    from .splits import Column

logger = logging.getLogger(__name__)

SHOWN = 5  # rows of a problem


def find_column(split: Dataset, name: str, data: SourceArguments, column: "Column") -> str:
    """The column that `data` chooses, or the first usual one that exists.

    Raises:
        InputError: there is none; the message names the option --<name>_column.
    """
    chosen = getattr(data, f"{column.name}_column", None)
    candidates = [chosen] if chosen else column.guesses
    for candidate in candidates:
        if candidate in split.column_names:
            return candidate
    raise InputError(
        f"the {name} split has no column {' or '.join(candidates)}; its columns are: {', '.join(split.column_names)}. "
        f"Choose one with --{column.name}_column.{did_you_mean(candidates[0], split.column_names)}"
    )


def unusable_rows(split: Dataset, *columns: "Column") -> dict[int, str]:
    """The problem of each row that lacks an entry in one of the columns."""
    problems: dict[int, str] = {}
    for column in columns:
        for row in column.unusable(split, column.name):
            problems.setdefault(row, f"no usable {column.name}")
    return problems


def without_rows(
    split: Dataset,
    name: str,
    problems: dict[int, str],
    data: SourceArguments,
    notes: list[str],
) -> Dataset:
    """The split without the rows that have a problem, and a note that names them.

    Raises:
        InputError: `data` does not say that bad rows are left out, or none is left.
    """
    if problems:
        rows_of: dict[str, list[int]] = defaultdict(list)
        for row, problem in sorted(problems.items()):
            rows_of[problem].append(row)
        reports = [f"row {listed(rows)} (from 0): {problem}" for problem, rows in rows_of.items()]
        report = f"rows of the {name} split that cannot be used: {'; '.join(reports)}"
        if not data.drop_bad_rows:
            raise InputError(f"{report}. Correct them, or pass --drop_bad_rows to go on without them.")
        note(notes, f"Left out were {report}.")
        split = split.select([row for row in range(len(split)) if row not in problems])
    if len(split) == 0:
        raise InputError(f"the {name} split has no row that can be used; give it at least one")
    return split


def note(notes: list[str], text: str) -> None:
    """Log an automatic decision, and keep it for the record of the run."""
    logger.warning(text)
    notes.append(text)


def listed(entries: list) -> str:
    """The first few entries, and how many more there are."""
    shown = ", ".join(map(str, entries[:SHOWN]))
    more = len(entries) - SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown
