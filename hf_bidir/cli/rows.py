"""A table with one explanation per row. It is written in parts: several processes share them, and a run resumes."""

import csv
import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from tqdm import tqdm
from typer import Exit, echo

from hf_bidir import __version__
from hf_bidir.common.files import replacing, sha256
from hf_bidir.explain.api import outcomes
from hf_bidir.explain.inputs.checkpoint import load_checkpoint
from hf_bidir.explain.request import Request
from hf_bidir.finetune.data.sources import read_table

PART = 64  # rows that are batched and stored together, by however many processes, on which no score then depends
OF_JSON = ("prediction", "probability", "target_name", "value", "explained", "method")
ADDED = (*OF_JSON, "strongest", "explanation", "error")


def explain_rows(
    checkpoint: str, source: Path, columns: list[str], output: Path, choices: dict[str, Any], top: int
) -> None:
    """Write a table with an explanation of each row, and print the errors of those that cannot be explained.

    Args:
        columns: that of texts or images, or two of pairs.
        choices: fields of `Request`.
        top: the number of words in the column `strongest`.

    Raises:
        ValueError: an error about the table, the checkpoint or the choices.
        Exit: with code 1, if a row cannot be explained.
    """
    request = Request(**{"budget": 0} | choices)
    table = read_table(str(source))
    names = table.column_names
    if missing := [name for name in columns if name not in names]:
        raise ValueError(f"{source} has no column {', '.join(missing)} (--column); its columns are {', '.join(names)}.")
    if taken := [name for name in ADDED if name in names]:
        raise ValueError(f"{source} has the columns {', '.join(taken)}, which explanations add; rename them.")
    run = f"{__version__} {checkpoint} {sha256(source)} {columns} {request} {top}"
    folder = output.with_name(f".{output.name}-{hashlib.sha256(run.encode()).hexdigest()[:12]}")
    # otherwise accelerate, with a CUDA build of torch on a CPU, joins no process group; the slowest process is awaited
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=7))
    model, processor = load_checkpoint(checkpoint)
    with request.checked(model.to(state.device), processor) as signed:
        explained = partial(outcomes, signed, processor, request=request)
        _write_parts(folder, table, itemgetter(*columns), explained, top)
    state.wait_for_everyone()
    if state.is_main_process:
        _join(folder, [*names, *ADDED], output)


def _write_parts(folder: Path, table: Any, inputs_of: Callable, explained: Callable, top: int) -> None:
    """Explain the rows of this process that an earlier run did not.

    Args:
        inputs_of: gives the text or image of a row, or the pair.
        explained: gives the explanations or errors of inputs.
    """
    state = PartialState()
    starts = range(0, len(table), PART)[state.process_index :: state.num_processes]
    with tqdm(desc="explaining", unit=" rows", total=len(table), disable=not state.is_main_process) as bar:
        for start in starts:
            part = folder / f"{start:012}.json"
            if part.exists():
                continue
            bar.update(start - bar.n)
            chosen = table.select(range(len(table))[start : start + PART])
            rows = dict(enumerate(chosen, start + 1))  # by number from 1
            by_length = sorted(rows, key=lambda number: len(str(inputs_of(rows[number]))))
            inputs = [inputs_of(rows[number]) for number in by_length]
            for number, outcome in zip(by_length, explained(inputs), strict=True):
                rows[number] = _added(outcome, number, top) | rows[number]
                bar.update()
            with replacing(part) as temporary:
                temporary.write_text(json.dumps([*rows.values()], default=str), encoding="utf-8")


def _added(outcome: Any, number: int, top: int) -> dict[str, Any]:
    """What an explanation or an error says of a row; an error is also printed, with the number of the row from 1."""
    if isinstance(outcome, Exception):
        tqdm.write(f"row {number}: {outcome}", file=sys.stderr)
        return {"error": str(outcome)}
    content = outcome.to_dict()
    listings = [outcome.listing]
    if outcome.is_generated:  # several predictions, with a line each
        listings = map(outcome.row_of, next(iter(outcome.scores.values())))
        content["prediction"] = "\n".join(outcome.written)
    strongest = ["; ".join(f"{word} {score}" for word, score in listing.strongest(top)) for listing in listings]
    return content | {"strongest": "\n".join(strongest), "explanation": outcome.to_json()}


def _join(folder: Path, columns: list[str], output: Path) -> None:
    """Write the output from its parts; exits with 1 if a row has an error."""
    failed = 0
    with replacing(output) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, columns, extrasaction="ignore")
        table.writeheader()
        for part in sorted(folder.glob("0*")):
            rows = json.loads(part.read_text(encoding="utf-8"))
            table.writerows(rows)
            failed += sum("error" in row for row in rows)
    shutil.rmtree(folder, ignore_errors=True)
    echo(f"Saved: {output}. Rows with an error: {failed:,}")
    if failed:
        raise Exit(1)
