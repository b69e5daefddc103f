"""Columns and rows that cannot be used, reported by the lines of their files, or left out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from datasets import Dataset

from hf_bidir.common.errors import InputError, did_you_mean
from hf_bidir.finetune.data.csv_files import row_lines

if TYPE_CHECKING:
    from hf_bidir.finetune.data.splits import Column

SHOWN = 5  # rows of a problem


def find_column(where: str, split: Dataset, chosen: str | None, column: "Column") -> str:
    """The chosen column, or the first usual one that exists.

    Raises:
        InputError: there is none; the message names the option --<name>_column.
    """
    candidates = [chosen] if chosen else column.guesses
    for candidate in candidates:
        if candidate in split.column_names:
            return candidate
    raise InputError(
        f"{where} has no column {' or '.join(candidates)}; its columns are: {', '.join(split.column_names)}. "
        f"Choose one with --{column.name}_column.{did_you_mean(candidates[0], split.column_names)}"
    )


@dataclass
class BadRows:
    """Rows of the splits that cannot be used: one error names all of them, or they are left out.

    Attributes:
        files: the file of each split that has one.
        drop: leave the rows out.
        problems: rows by split and problem.
    """

    files: Mapping[str, str]
    drop: bool
    problems: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, split: str, problem: str, rows: Iterable[int]) -> None:
        """Add rows that have a problem, unless an earlier problem has them."""
        if new := sorted(set(rows) - self.of(split)):
            self.problems[split, problem] = new

    def check(self, split: str, rows: Dataset, column: "Column") -> None:
        """Add the rows without a usable entry in a column."""
        self.add(split, f"no {column.name}", column.unusable(rows, split, column.name))

    def of(self, split: str) -> set[int]:
        """The rows of a split that have a problem."""
        return {row for (name, _), rows in self.problems.items() if name == split for row in rows}

    def settle(self, splits: dict[str, Dataset]) -> tuple[dict[str, Dataset], list[str]]:
        """The splits without these rows, and notes of what was left out.

        Raises:
            InputError: rows must not be left out.
        """
        if not self.problems:
            return splits, []
        problems = []
        for (name, problem), rows in self.problems.items():
            problems.append(f"{self._place(name, splits[name], rows)}: {problem}")
        if not self.drop:
            correct = "\nCorrect these rows, or pass --drop_bad_rows to go on without them."
            raise InputError("\n- ".join(["the data cannot be used:", *problems]) + correct)
        rest = {}
        for name, split in splits.items():
            rows = set(range(len(split))) - self.of(name)
            rest[name] = split.select(sorted(rows))
        return rest, [f"Rows were left out. {'; '.join(problems)}."]

    def _place(self, name: str, split: Dataset, rows: list[int]) -> str:
        """The split and its rows, as lines of its file, or counted from 0 where rows are no lines."""
        file = Path(self.files.get(name, ""))
        where = f"{file.name} (the {name} split)" if file.name else f"the {name} split"
        lines = row_lines(file) if file.is_file() else []
        if len(lines) == len(split):
            return f"{where}, line {listed([lines[row] for row in rows])}"
        return f"{where}, row {listed(rows)} (from 0)"


def listed(entries: list) -> str:
    """The first few entries, and how many more there are."""
    more = f" and {len(entries) - SHOWN:,} more" if len(entries) > SHOWN else ""
    return ", ".join(map(str, entries[:SHOWN])) + more
