"""The lines of a csv, json or txt file: encoding, separator, where each row begins, and why the file cannot be read."""

import codecs
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_bidir.common.errors import InputError

COMMAS, JSON = (".csv", ".tsv"), (".json", ".jsonl")
SEPARATORS = ",;\t|"
LONGEST_FIELD = 2**31 - 1  # characters; the csv module's own limit is 131,072
SHOWN = 5


def encoding(file: Path) -> str:
    """UTF-8 unless the file begins with the mark of UTF-16, as what Excel saves as Unicode text does."""
    with file.open("rb") as stream:
        # the name with "sig" also reads UTF-8 without a mark, and makes `datasets` refuse other bytes in json
        return "utf-16" if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def dialect(file: Path) -> dict[str, Any]:
    """The separator in the header of a csv file, and whether blanks follow it, as arguments of csv and pandas.

    Raises:
        InputError: the first line is a command to Excel.
    """
    usual = "\t" if file.suffix.lower() == ".tsv" else ","
    line, header = next(_numbered(file), (1, ""))
    if header.startswith("sep="):
        raise InputError(f"{file}, line {line}: {header.strip()!r} is a command to Excel, no header; remove the line")
    try:
        found = csv.Sniffer().sniff(header, usual if usual in header else SEPARATORS)
    except csv.Error:  # a single column
        return {"delimiter": usual}
    return {"delimiter": found.delimiter, "skipinitialspace": found.skipinitialspace}


def records(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The line where each row of a csv file begins, counted from 1, and its fields; the header is the first row."""
    csv.field_size_limit(LONGEST_FIELD)
    with file.open(encoding=encoding(file), newline="") as stream:
        reader, line = csv.reader(stream, **dialect(file)), 1
        for fields in reader:
            if len(fields) > 1 or any(field.strip() for field in fields):  # pandas skips blank lines
                yield line, fields
            line = reader.line_num + 1


def row_lines(file: Path) -> list[int]:
    """The line where each row begins, counted from 1; empty for a file whose rows are not lines."""
    suffix = file.suffix.lower()
    if suffix in COMMAS:
        return [line for line, _ in records(file)][1:]
    if suffix in JSON and not _is_list(file):
        return [line for line, _ in _numbered(file)]
    return []


def reason(file: Path, error: BaseException) -> str:
    """Why a file cannot be read, with the line; by default what the first cause of the library's `error` says."""
    while error.__cause__ is not None:
        error = error.__cause__
    said, suffix = " ".join(str(error).split()), file.suffix.lower()
    if suffix == ".parquet":
        return said
    found = _not_utf_8(file)
    if not found and suffix in COMMAS:
        found = unequal_rows(file) if "EOF inside string" not in said else _open_quote(file)
    return found or (suffix in JSON and _not_alike(file)) or said


def unequal_rows(file: Path) -> str | None:
    """The lines of a csv file that have more fields than its header, in words; None if there are none."""
    (_, header), *rows = records(file)
    wide = [(line, len(fields)) for line, fields in rows if len(fields) > len(header)]
    if not wide or all(len(fields) == len(header) + 1 for _, fields in rows):  # names of rows, as R writes them
        return None
    more = f" ({len(wide)} such lines)" if len(wide) > SHOWN else ""
    return (
        f"the header has {len(header)} field{'s' if len(header) > 1 else ''}, "
        f"{', '.join(f'line {line} has {count}' for line, count in wide[:SHOWN])}{more}; put quotes around a text "
        f"that holds the separator {dialect(file)['delimiter']!r}"
    )


def _open_quote(file: Path) -> str:
    *_, (line, _) = records(file)
    return f"a quote that opens in line {line} does not close; write a quote within quotes twice"


def _not_utf_8(file: Path) -> str | None:
    if encoding(file) == "utf-16":
        return None
    with file.open("rb") as stream:
        for line, text in enumerate(stream, 1):
            try:
                text.decode("utf-8")
            except UnicodeDecodeError as error:
                shown = text[max(error.start - 20, 0) : error.start + 20].decode("cp1252", errors="replace").strip()
                return (
                    f"expected UTF-8; line {line} holds the byte 0x{text[error.start]:02x} (in Windows-1252 it reads "
                    f"{shown!r}); save the file as UTF-8, as `iconv -f WINDOWS-1252 -t UTF-8` does"
                )
    return None


def _not_alike(file: Path) -> str | None:
    """The line that is no JSON object, or the first two whose values of one column are of different types."""
    if _is_list(file):
        return None
    seen: dict[str, tuple[int, type]] = {}
    for line, text in _numbered(file):
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            return f'line {line} is not JSON ({error}); expected an object, such as {{"text": ...}}, in every line'
        if not isinstance(row, dict):
            return f'line {line} holds a {type(row).__name__}; expected an object, such as {{"text": ...}}'
        for name, value in row.items():
            if value is None:
                continue
            kind = float if type(value) is int else type(value)
            before, other = seen.setdefault(name, (line, kind))
            if kind is not other:
                names = {float: "number", str: "text", bool: "truth value", list: "list", dict: "object"}
                return (
                    f"{name} is a {names[other]} in line {before} and a {names[kind]} in line {line}; write the "
                    "values of a column alike"
                )
    return None


def _is_list(file: Path) -> bool:
    """Whether a json file holds one list instead of an object in every line."""
    return next((text.lstrip().startswith("[") for _, text in _numbered(file)), False)


def _numbered(file: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    with file.open(encoding=encoding(file)) as stream:
        yield from ((line, text) for line, text in enumerate(stream, 1) if text.strip())
