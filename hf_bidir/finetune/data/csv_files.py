"""The dialect of a csv file."""

from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Features, Value

from hf_bidir.common.errors import InputError

ENCODING = "utf-8-sig"  # UTF-8, with the mark that Excel writes, or without one
SEPARATORS = ",;\t|"


def csv_options(file: Path) -> dict[str, Any]:
    """Arguments of pandas and `datasets` for a csv file, whose columns stay texts: `007` and `NA` too.

    Raises:
        InputError: the first row has more fields than the header.
    """
    separator = _separator(file)
    options = {
        "delimiter": separator,
        "skipinitialspace": True,
        "encoding": ENCODING,
        "keep_default_na": False,
    }
    table = pd.read_csv(file, nrows=1, **options)
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes fields beyond the header for the names of rows
        raise InputError(
            f"expected {len(table.columns)} fields in each row of {file}, as in its header; the first has more. Put "
            f"quotes around a text that holds the separator {separator!r}"
        )
    return options | {"features": Features(dict.fromkeys(table.columns, Value("string")))}


def _separator(file: Path) -> str:
    """The most frequent separator in the header."""
    with file.open(encoding=ENCODING) as stream:
        header = next(filter(str.strip, stream), "")
    usual = "\t" if file.suffix.lower() == ".tsv" else ","
    return max(usual + SEPARATORS, key=header.count)
