"""Reading one split, from a file or from a data set on the Hub, as a `datasets.Dataset`."""

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset, DatasetDict, Features, Value, load_dataset
from datasets import logging as datasets_logging
from datasets.exceptions import DatasetGenerationError

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.finetune.data.lines import dialect, encoding, reason, unequal_rows

TABLES = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".txt": "text",  # one text per line
}


def existing(path: str) -> Path:
    """The path, if it exists.

    Raises:
        InputError: the path does not exist.
    """
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
    try:
        with _without_log():
            options = _options(file, builder, sample_by)
            return load_dataset(builder, data_files=glob.escape(str(file)), split="train", **options)
    except InputError:
        raise
    except (DatasetGenerationError, ValueError, OSError) as error:
        if "corresponds to no data" in str(error):
            raise InputError(f"{file} has no rows; expected at least one") from error
        raise InputError(f"cannot read {file} as {builder}: {reason(file, error)}") from error


def _options(file: Path, builder: str, sample_by: str) -> dict[str, Any]:
    if builder == "parquet":
        return {}
    options: dict[str, Any] = {"encoding": encoding(file)}
    if builder == "text":
        options["sample_by"] = sample_by
    if builder == "csv":
        # texts such as "null" or "NA" stay texts
        options |= dialect(file) | {"keep_default_na": False}
        head = pd.read_csv(file, nrows=1, **options)
        # pandas takes the first field for the name of a row where the first row has one more than the header
        if not isinstance(head.index, pd.RangeIndex) and (problem := unequal_rows(file)):
            raise InputError(f"cannot read {file} as csv: {problem}")
        options["features"] = Features({name: Value("string") for name in head.columns})
    return options


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep `datasets` from logging an error that is raised as well."""
    before = datasets_logging.get_verbosity()
    datasets_logging.set_verbosity(datasets_logging.CRITICAL)
    try:
        yield
    finally:
        datasets_logging.set_verbosity(before)


def read_hub(name: str, config: str | None) -> dict[str, Dataset]:
    """Read the train, validation and test splits of a data set on the Hub, those that exist.

    Raises:
        InputError: the data set cannot be loaded or has no train split.
    """
    with as_input_error(f"cannot load the data set {name!r} from the Hub: ", Exception):
        splits = load_dataset(name, config)
    if not isinstance(splits, DatasetDict) or "train" not in splits:
        raise InputError(f"expected a train split in {name!r}; it has: {', '.join(map(str, splits))}")
    return {split: splits[split] for split in ("train", "validation", "test") if split in splits}
