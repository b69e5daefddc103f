"""Reading one split, from a file or from a data set on the Hub; errors name the line of the file."""

import codecs
import csv
import glob
import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset, DatasetDict, Features, Value, load_dataset
from datasets import config as datasets_config
from datasets import logging as datasets_logging
from datasets.exceptions import DatasetGenerationError

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.files import sha256

TABLES = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".txt": "text",  # one text per line
}
SEPARATORS = ",;\t|"
SHOWN = 5  # lines in an error
JSON_TYPES = {int: "number", float: "number", str: "text", bool: "truth value", list: "list", dict: "object"}
csv.field_size_limit(2**31 - 1)  # characters; the csv module's own limit is 131,072


def existing(path: str) -> Path:
    """The path, if it exists; InputError otherwise."""
    if not Path(path).exists():
        raise InputError(f"expected a data file at {path}; there is no such file or folder")
    return Path(path)


def is_table(path: str) -> bool:
    """Whether a path ends as a file that `read_table` reads, in capitals or not."""
    return Path(path).suffix.lower() in TABLES


def read_table(path: str, sample_by: str = "line") -> Dataset:
    """Read a parquet, csv, tsv, json, jsonl or txt file.

    The columns of csv and tsv files are texts, as they are written: `007` and `NA` stay so. Their separator, a comma,
    semicolon, tab or bar, is the one in the header.

    Args:
        sample_by: what a row of a txt file is: a "line", a "paragraph" or the whole "document".

    Raises:
        InputError: the file is missing, has another suffix or cannot be read; the message says in which line.
    """
    file = existing(path)
    if not is_table(path):
        hint = " Is it a folder of images? They need image_classification.py." if file.is_dir() else ""
        raise InputError(f"expected a file that ends in {', '.join(TABLES)}; got {file}.{hint}")
    builder = TABLES[file.suffix.lower()]
    if file.stat().st_size == 0:
        raise InputError(f"{file} is empty; expected a {builder} file with at least one row")
    verbosity = datasets_logging.get_verbosity()
    datasets_logging.set_verbosity(datasets_logging.CRITICAL)  # it logs an error that it raises as well
    try:
        options = _options(file, builder, sample_by)
        return load_files(builder, [file], data_files=glob.escape(str(file)), split="train", **options)
    except InputError:
        raise
    except (DatasetGenerationError, ValueError, OSError) as error:
        if "corresponds to no data" in str(error):
            raise InputError(f"{file} has no rows; expected at least one") from error
        raise InputError(f"cannot read {file} as {builder}: {_cause(file, builder, error)}") from error
    finally:
        datasets_logging.set_verbosity(verbosity)


def read_hub(name: str, config: str | None) -> dict[str, Dataset]:
    """Read the train, validation and test splits of a data set on the Hub, those that exist.

    Raises:
        InputError: the data set cannot be loaded or has no train split.
    """
    check_cache()
    with as_input_error(f"cannot load the data set {name!r} from the Hub: ", Exception):
        local = Path(name).is_dir()
        splits = load_files(name, Path(name).rglob("*"), name=config) if local else load_dataset(name, config)
    if not isinstance(splits, DatasetDict) or "train" not in splits:
        raise InputError(f"expected a train split in {name!r}; it has: {', '.join(map(str, splits))}")
    return {split: splits[split] for split in ("train", "validation", "test") if split in splits}


def load_files(source: str, files: Iterable[Path], **options: Any) -> Any:
    """`load_dataset` with a cache for the content of these files; its own is for paths and times of change, which files
    of other content can have."""
    check_cache()
    content = "".join(map(sha256, filter(Path.is_file, sorted(files))))
    return load_dataset(source, description=hashlib.sha256(content.encode()).hexdigest(), **options)


def check_cache() -> None:
    """Raise InputError if the folder where `datasets` keeps its tables cannot be written."""
    cache = Path(datasets_config.HF_DATASETS_CACHE)
    with as_input_error(f"expected HF_HOME to be a folder that can be written; {cache} is not: ", OSError):
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()


def row_lines(file: Path) -> list[int]:
    """The line where each row begins, counted from 1; empty for a file whose rows are not lines."""
    builder = TABLES.get(file.suffix.lower())
    if builder == "csv":
        return [line for line, _ in _records(file)][1:]
    return [line for line, _ in _lines(file)] if builder == "json" and not _is_list(file) else []


def check_header(file: Path) -> None:
    """Raise InputError if two columns of a csv file have one name; pandas would rename the second one."""
    _, names = next(_records(file), (1, []))
    for name in filter(str.strip, names):
        numbers = [str(number) for number, other in enumerate(names, 1) if other == name]
        if len(numbers) > 1:
            numbered = f"columns {' and '.join(numbers)} of {file} are both called {name!r}"
            raise InputError(f"expected one name per column; {numbered}: rename or remove one")


def _options(file: Path, builder: str, sample_by: str) -> dict[str, Any]:
    if builder == "parquet":
        return {}
    options: dict[str, Any] = {"encoding": _encoding(file)}
    if builder == "text":
        options["sample_by"] = sample_by
    if builder == "csv":
        check_header(file)
        options |= _dialect(file) | {"keep_default_na": False}  # texts such as "null" or "NA" stay texts
        head = pd.read_csv(file, nrows=1, **options)
        # pandas takes the first field for the name of a row where the first row has one more than the header
        if not isinstance(head.index, pd.RangeIndex) and (problem := _unequal_rows(file)):
            raise InputError(f"cannot read {file} as csv: {problem}")
        options["features"] = Features({name: Value("string") for name in head.columns})
    return options


def _encoding(file: Path) -> str:
    """UTF-8 unless the file begins with the mark of UTF-16, as what Excel saves as Unicode text does."""
    with file.open("rb") as stream:
        # the name with "sig" also reads UTF-8 without a mark, and makes `datasets` refuse other bytes in json
        return "utf-16" if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    with file.open(encoding=_encoding(file)) as stream:
        yield from ((line, text) for line, text in enumerate(stream, 1) if text.strip())


def _is_list(file: Path) -> bool:
    return next((text.lstrip().startswith("[") for _, text in _lines(file)), False)


def _dialect(file: Path) -> dict[str, Any]:
    """The separator in the header of a csv file, and whether blanks follow it, as arguments of csv and pandas."""
    usual = "\t" if file.suffix.lower() == ".tsv" else ","
    line, header = next(_lines(file), (1, ""))
    if header.startswith("sep="):
        raise InputError(
            f"{file}, line {line}: {header.strip()!r} is a command to Excel, not a header; remove the line"
        )
    try:
        sniffed = csv.Sniffer().sniff(header, usual if usual in header else SEPARATORS)
    except csv.Error:  # a single column
        return {"delimiter": usual}
    return {"delimiter": sniffed.delimiter, "skipinitialspace": sniffed.skipinitialspace}


def _records(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The line where each row of a csv file begins, and its fields; the header is the first row."""
    with file.open(encoding=_encoding(file), newline="") as stream:
        reader, line = csv.reader(stream, **_dialect(file)), 1
        for fields in reader:
            if len(fields) > 1 or any(field.strip() for field in fields):  # pandas skips blank lines
                yield line, fields
            line = reader.line_num + 1


def _cause(file: Path, builder: str, error: BaseException) -> str:
    """Why a file cannot be read, with the line where possible; otherwise the library's first cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    cause = " ".join(str(error).split())
    if builder == "parquet":
        return cause
    problem = _not_utf_8(file)
    if not problem and builder == "csv":
        *_, (line, _) = _records(file)
        quote = f"a quote that opens in line {line} does not close; write a quote within quotes twice"
        problem = quote if "EOF inside string" in cause else _unequal_rows(file)
    if not problem and builder == "json" and not _is_list(file):
        problem = _unequal_objects(file)
    return problem or cause


def _not_utf_8(file: Path) -> str | None:
    if _encoding(file) == "utf-16":
        return None
    for line, text in enumerate(file.read_bytes().splitlines(), 1):
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            shown = text[max(error.start - 20, 0) : error.start + 20].decode("cp1252", errors="replace").strip()
            return (
                f"expected UTF-8; line {line} holds the byte 0x{text[error.start]:02x} (in Windows-1252 it reads "
                f"{shown!r}); save the file as UTF-8, as `iconv -f WINDOWS-1252 -t UTF-8` does"
            )
    return None


def _unequal_rows(file: Path) -> str | None:
    """The lines of a csv file that have more fields than its header, in words; None if there are none."""
    (_, header), *rows = _records(file)
    wide = [(line, len(fields)) for line, fields in rows if len(fields) > len(header)]
    if not wide or all(len(fields) == len(header) + 1 for _, fields in rows):  # names of rows, as R writes them
        return None
    more = f" ({len(wide)} such lines)" if len(wide) > SHOWN else ""
    lines = ", ".join(f"line {line} has {count}" for line, count in wide[:SHOWN])
    return (
        f"the header has {len(header)} field{'s' if len(header) > 1 else ''}, {lines}{more}; put quotes around a text "
        f"that holds the separator {_dialect(file)['delimiter']!r}"
    )


def _unequal_objects(file: Path) -> str | None:
    """The line that is no JSON object, or the first two whose values of one column are of different types."""
    seen: dict[str, tuple[int, str]] = {}
    for line, text in _lines(file):
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            return f'line {line} is not JSON ({error}); expected an object, such as {{"text": ...}}, in every line'
        if not isinstance(row, dict):
            return f'line {line} holds a {type(row).__name__}; expected an object, such as {{"text": ...}}'
        for name, value in row.items():
            kind = JSON_TYPES.get(type(value))
            before, other = seen.setdefault(name, (line, kind)) if kind else (line, kind)
            if kind != other:
                return (
                    f"{name} is a {other} in line {before} and a {kind} in line {line}; write the values of a column "
                    "alike"
                )
    return None
