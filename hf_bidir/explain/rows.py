"""A table with one explanation per row. It is written in parts: several processes share them, and a run resumes."""

import csv
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir import __version__
from hf_bidir.common.files import replacing, sha256
from hf_bidir.explain.alignment import Alignment
from hf_bidir.explain.api import outcomes
from hf_bidir.explain.request import Request
from hf_bidir.explain.result import Explanation

CSV, LINES = ".csv", ".jsonl"
PART = 64  # rows that are batched and stored together, by however many processes, on which no score then depends
ADDED = ("prediction", "probability", "explained", "y", "method", "strongest", "explanation", "error")
Row = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """A table whose rows are explained.

    Attributes:
        source: the file that it was read from.
        table: a data set of `datasets`.
        columns: that of texts or images, or two of pairs.
        output: the file to write, .csv or .jsonl (JSON lines).
    """

    source: Path
    table: Any
    columns: Sequence[str]
    output: Path

    def check(self) -> None:
        """Raise ValueError for another output, for a missing column, and for one that the explanations add."""
        if self.output.suffix not in (CSV, LINES):
            raise ValueError(f"expected a file that ends with {CSV} or {LINES} for --output, got {self.output}.")
        if self.output.resolve() == self.source.resolve():
            raise ValueError(f"expected another file for --output; {self.output} holds the rows themselves.")
        names = self.table.column_names
        for column in self.columns:
            if column not in names:
                raise ValueError(
                    f"expected a column {column!r} in {self.source}; choose one with --column: {', '.join(names)}."
                )
        for name in ADDED:
            if name in names:
                raise ValueError(f"expected no column {name!r} in {self.source}, which is added; rename it.")

    def folder(self, request: Request, model: str) -> Path:
        """The place of the parts, which a run with the same content, model and request finds again."""
        key = f"{__version__} {model} {sha256(self.source)} {self.columns} {request}"
        return self.output.with_name(f".{self.output.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}")

    def input(self, row: Row) -> Any:
        """The text or image of a row, or the pair."""
        values = tuple(row[column] for column in self.columns)
        return values if len(values) > 1 else values[0]


def explain_rows(model: PreTrainedModel, processor: Any, rows: Rows, request: Request) -> int | None:
    """Write the rows with their explanations; those that cannot be explained with an error, which is also printed.

    Returns:
        The number of rows with an error; None in all processes but the main one.

    Raises:
        ValueError: an error about the model or the request.
    """
    # otherwise accelerate, with a CUDA build of torch on a CPU, joins no process group; the slowest process is awaited
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=7))
    count, folder = len(rows.table), rows.folder(request, model.config.name_or_path)
    parts = {folder / f"{start:012}{LINES}": range(start, min(start + PART, count)) for start in range(0, count, PART)}
    mine = list(parts.items())[state.process_index :: state.num_processes]
    total = sum(len(numbers) for _, numbers in mine)
    with (
        request.checked(model.to(state.device), processor) as signed,
        tqdm(desc="explaining", unit=" rows", total=total, disable=not state.is_main_process) as bar,
    ):
        for part, numbers in mine:
            if part.exists():
                bar.update(len(numbers))
                continue
            chosen = [rows.table[number] for number in numbers]
            inputs = [rows.input(row) for row in chosen]
            by_length = sorted(range(len(inputs)), key=lambda place: len(str(inputs[place])))
            explained = outcomes(signed, processor, [inputs[place] for place in by_length], request)
            for place, outcome in zip(by_length, explained, strict=True):
                chosen[place] |= _added(outcome, numbers[place])
                bar.update()
            with replacing(part) as temporary:
                lines = [json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in chosen]
                temporary.write_text("".join(lines), encoding="utf-8")
    state.wait_for_everyone()
    if not state.is_main_process:
        return None
    failed = _join(sorted(parts), rows)
    shutil.rmtree(folder)
    return failed


def _added(outcome: Explanation | Alignment | Exception, number: int) -> Row:
    """What an outcome adds to its row; an error is also printed, with the number of the row from 1."""
    if isinstance(outcome, Exception):
        tqdm.write(f"row {number + 1}: {outcome}", file=sys.stderr)
        return dict.fromkeys(ADDED) | {"error": str(outcome)}
    if isinstance(outcome, Alignment):
        of_table = {"explained": outcome.explained, "method": outcome.method, "explanation": outcome.to_json()}
        return dict.fromkeys(ADDED) | of_table
    return {
        "prediction": outcome.prediction,
        "probability": outcome.probability,
        "explained": outcome.target_name,
        "y": outcome.value,
        "method": outcome.method,
        "strongest": ", ".join(f"{score} {token}" for token, score in outcome.listing.strongest()),
        "explanation": outcome.to_json(),
        "error": None,
    }


def _join(parts: Sequence[Path], rows: Rows) -> int:
    """Write the output from its parts; the number of rows with an error."""
    failed, is_csv = 0, rows.output.suffix == CSV
    with replacing(rows.output) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, [*rows.table.column_names, *ADDED])
        if is_csv:
            table.writeheader()
        for line in chain.from_iterable(map(_lines, parts)):
            row = json.loads(line)
            failed += row["error"] is not None
            if is_csv:
                table.writerow(row)
            else:
                stream.write(line)
    return failed


def _lines(part: Path) -> Iterator[str]:
    with part.open(encoding="utf-8") as stream:
        yield from stream
