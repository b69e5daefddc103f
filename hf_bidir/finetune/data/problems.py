"""Rows that cannot be used: collected over all splits, then reported at once by the lines of the files, or dropped."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.sources import row_lines

SHOWN = 5  # rows of one problem, and labels
LONGEST = 60  # characters of a label


class Problems:
    """The problems of the splits of a run.

    Args:
        splits: by name, with all rows of their files.
        files: the file of each split that has one.
    """

    def __init__(self, splits: Mapping[str, Dataset], files: Mapping[str, str]):
        self.splits, self.files = splits, files
        self.texts: dict[str, list[str]] = defaultdict(list)
        self.rows: dict[str, set[int]] = defaultdict(set)
        self.of_columns = False  # there are problems that dropping rows does not solve

    def column(self, name: str, problem: str) -> None:
        """Add a problem that concerns the whole split `name`."""
        self.texts[name].append(problem)
        self.of_columns = True

    def add(self, name: str, problem: str, rows: Iterable[int]) -> None:
        """Add rows of the split `name` that have a problem, unless there are none or an earlier problem has them."""
        if rows := sorted(set(rows) - self.rows[name]):
            self.texts[name].append(f"{self.title(name)}, {self._places(name, rows)}: {problem}")
            self.rows[name].update(rows)

    def title(self, name: str) -> str:
        """The split as a message names it, with its file."""
        file = self.files.get(name)
        return f"{Path(file).name} (the {name} split)" if file else f"the {name} split"

    def usable(self, name: str) -> list[int]:
        """The rows without a problem so far."""
        return [row for row in range(len(self.splits[name])) if row not in self.rows[name]]

    def settle(self, drop: bool) -> list[str]:
        """Raise one error with every problem; with `drop`, return notes about the rows that are left out instead.

        Raises:
            InputError: there are problems that are not dropped.
        """
        texts, count = [text for name in self.splits for text in self.texts[name]], sum(map(len, self.rows.values()))
        if not texts:
            return []
        emptied = [] if self.of_columns else [name for name in self.splits if not self.usable(name)]
        if drop and not self.of_columns and not emptied:
            return [f"{count:,} row{'s were' if count > 1 else ' was'} left out. {'; '.join(texts)}."]
        these, them = ("this row", "it") if count == 1 else (f"these {count:,} rows", "them")
        advice = [] if self.of_columns else [f"Correct {these}, or pass --drop_bad_rows to go on without {them}."]
        if emptied:
            advice = [f"No row of {' and '.join(map(self.title, emptied))} can be used."]
        raise InputError("\n".join(["the data cannot be used:", *(f"- {text}" for text in texts), *advice]))

    def _places(self, name: str, rows: list[int]) -> str:
        """The rows as lines of the file, or counted from 0 where a row is no line; the first few, and how many more."""
        file = Path(self.files.get(name, ""))
        lines = row_lines(file) if file.is_file() else []
        are_lines = len(lines) == len(self.splits[name])
        numbers = listed([str(lines[row] if are_lines else row) for row in rows])
        places = f"{'line' if are_lines else 'row'}{'s' if len(rows) > 1 else ''} {numbers}"
        return places if are_lines else f"{places} (from 0)"


def listed(entries: list[str]) -> str:
    """The first few entries, and how many more there are."""
    more = f" and {len(entries) - SHOWN:,} more" if len(entries) > SHOWN else ""
    return ", ".join(entries[:SHOWN]) + more


def quoted(values: Sequence[Any]) -> str:
    """The same in quotes, each shortened if it is long."""
    return listed([text if len(text := repr(value)) <= LONGEST else f"{text[:LONGEST]}..." for value in values])
