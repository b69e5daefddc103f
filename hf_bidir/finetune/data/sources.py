"""Reading one split, from a file or from a data set on the Hub, as a `datasets.Dataset`."""

from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, load_dataset
from datasets.exceptions import DatasetGenerationError

from hf_bidir.common.errors import InputError, as_input_error

# texts such as "null" or "NA" stay texts
_CSV = {"keep_default_na": False}
TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    ".parquet": ("parquet", {}),
    ".csv": ("csv", _CSV),
    ".tsv": ("csv", _CSV | {"sep": "\t"}),
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".txt": ("text", {}),  # one text per line
}


def existing(path: str) -> Path:
    """The path, if it exists.

    Raises:
        InputError: the path does not exist.
    """
    if not Path(path).exists():
        raise InputError(f"expected a data file at {path}; there is no such file or folder")
    return Path(path)


def read_table(path: str, sample_by: str = "line") -> Dataset:
    """Read a parquet, csv, tsv, json, jsonl or txt file.

    Args:
        sample_by: what a row of a txt file is: a "line", a "paragraph" or the whole "document".

    Raises:
        InputError: the file is missing, has another suffix or cannot be read.
    """
    file = existing(path)
    if file.suffix not in TABLES:
        hint = " Is it a folder of images? They need image_classification.py." if file.is_dir() else ""
        raise InputError(f"expected a file that ends in {', '.join(TABLES)}; got {file}.{hint}")
    builder, options = TABLES[file.suffix]
    if builder == "text":
        options = {"sample_by": sample_by}
    if file.stat().st_size == 0:
        raise InputError(f"{file} is empty; expected a {builder} file with at least one row")
    with as_input_error(f"cannot read {file} as {builder}: ", DatasetGenerationError, ValueError, OSError):
        try:
            return load_dataset(builder, data_files=str(file), split="train", **options)
        except ValueError as error:
            if "corresponds to no data" in str(error):
                raise InputError(f"{file} has no rows; expected at least one") from error
            raise
        except DatasetGenerationError as error:
            if isinstance(error.__cause__, UnicodeDecodeError):
                raise InputError(f"expected UTF-8 in {file}; {error.__cause__}; save the file as UTF-8") from error
            raise


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
