"""The dialect of a csv file, and the lines where rows of a file begin."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Features, Value

from hf_bidir.common.errors import InputError

ENCODING = "utf-8-sig"  # UTF-8, with the mark that Excel writes, or without one
SEPARATORS = ",;\t|"
csv.field_size_limit(2**31 - 1)  # characters; the default, 131,072, is less than a long document has


def csv_options(file: Path) -> dict[str, Any]:
    """Arguments of pandas and `datasets` for a csv file, whose columns stay texts: `007` and `NA` too.

    Raises:
        InputError: the first row has more fields than the header.
    """
    rows = csv_rows(file)
    _, header = next(rows, (1, []))
    line, first = next(rows, (1, []))
    if len(first) > len(header):  # pandas would take the first column for the names of rows
        raise InputError(
            f"expected {len(header)} fields in each row of {file}, as in its header; line {line} has {len(first)}. "
            f"Put quotes around a text that holds the separator {_separator(file)!r}"
        )
    options = {
        "delimiter": _separator(file),
        "skipinitialspace": True,
        "encoding": ENCODING,
        "keep_default_na": False,
    }
    columns = pd.read_csv(file, nrows=0, **options).columns
    return options | {"features": Features(dict.fromkeys(columns, Value("string")))}


def csv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The line where each row begins, counted from 1, and its fields; the header is the first row."""
    with file.open(encoding=ENCODING, newline="") as stream:
        reader = csv.reader(stream, delimiter=_separator(file), skipinitialspace=True)
        line = 1
        for fields in reader:
            if len(fields) > 1 or any(map(str.strip, fields)):  # pandas skips blank lines
                yield line, fields
            line = reader.line_num + 1


def row_lines(file: Path) -> list[int]:
    """The line where each row of a csv or json lines file begins; empty for other files."""
    suffix = file.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return [line for line, _ in csv_rows(file)][1:]
    if suffix not in (".json", ".jsonl"):
        return []
    with file.open(encoding=ENCODING) as stream:
        return [line for line, text in enumerate(stream, 1) if text.strip()]


def _separator(file: Path) -> str:
    """The most frequent separator in the header."""
    with file.open(encoding=ENCODING) as stream:
        header = next(filter(str.strip, stream), "")
    usual = "\t" if file.suffix.lower() == ".tsv" else ","
    return max(usual + SEPARATORS, key=header.count)
