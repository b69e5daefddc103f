"""One split, read by `datasets` from a file, a folder of images, or a data set on the Hub."""

import glob
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Image, Value, load_dataset
from datasets.data_files import SPLIT_KEYWORDS
from datasets.exceptions import DatasetGenerationError
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.files import sha256

from .csv_files import ENCODING, csv_options

DIGITS = "digits"
DIGITS_WHITE = 16  # the scans hold 0 to 16
BUILDERS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".txt": "text",
}
SPLITS = ("train", "validation", "test")
SPLIT_FOLDERS = {name for names in SPLIT_KEYWORDS.values() for name in names}  # train, test, val …


def is_table(path: str) -> bool:
    """Whether a path ends as a file that `read_table` reads, in capitals or not."""
    return Path(path).suffix.lower() in BUILDERS


def read_table(path: str, sample_by: str = "line") -> Dataset:
    """Read a parquet, csv, tsv, json, jsonl or txt file.

    Args:
        sample_by: what a row of a txt file is: a "line", a "paragraph" or the whole "document".

    Raises:
        InputError: the file is missing, has another suffix or cannot be read.
    """
    file = Path(path)
    if not file.exists():
        raise InputError(f"expected a data file at {path}; there is no such file or folder")
    builder = BUILDERS.get(file.suffix.lower())
    if builder is None:
        raise InputError(f"expected a file that ends in {', '.join(BUILDERS)}; got {file}")
    options: dict[str, Any] = {}
    with as_input_error(f"expected a table in UTF-8 in {file}; cannot read it: "):
        if builder == "csv":
            options = csv_options(file)
        elif builder != "parquet":
            options["encoding"] = ENCODING
        if builder == "text":
            options["sample_by"] = sample_by
    return _load(builder, [file], data_files=glob.escape(path), split="train", **options)


def read_images(path: str) -> Dataset:
    """Read a folder of images, whose `label` is the folder of each image or a column of metadata, or else a table.

    Raises:
        InputError: the path is missing or cannot be read, or the folder holds several splits.
    """
    folder = Path(path)
    if not folder.is_dir():
        return read_table(path)
    splits = sorted(inside.name for inside in folder.iterdir() if inside.name.lower() in SPLIT_FOLDERS)
    if len(splits) > 1:
        raise InputError(f"expected one split in {folder}; it has {', '.join(splits)}. Give each its own option")
    metadata = list(folder.glob("metadata.*"))
    options = {} if metadata else {"drop_labels": False}
    every = f"{glob.escape(path)}/**"
    return _load("imagefolder", metadata, data_files=every, split="train", **options)


def read_hub(name: str, config: str | None) -> dict[str, Dataset]:
    """Read the train, validation and test splits, where they exist, of a data set on the Hub or in a folder.

    Raises:
        InputError: the data set cannot be loaded or has no train split.
    """
    if Path(name).is_dir():
        splits = _load(name, Path(name).rglob("*"), name=config)
    else:
        with as_input_error(f"cannot load the data set {name!r} from the Hub: ", Exception):
            splits = load_dataset(name, config)
    if "train" not in splits:
        raise InputError(f"expected a train split in {name!r}; it has: {', '.join(map(str, splits))}")
    return {split: splits[split] for split in SPLITS if split in splits}


@cache
def read_digits() -> dict[str, Dataset]:
    """The 1,797 handwritten 8x8 digits that scikit-learn carries: 70 % train, 10 % validation, 20 % test.

    The split is stratified by class and always the same.
    """
    digits = load_digits()
    pixels = (digits.images * 255 / DIGITS_WHITE).round().astype(np.uint8)
    features = Features({"image": Image(), "label": Value("int64")})
    images = Dataset.from_dict({"image": list(pixels), "label": digits.target}, features)
    classes, rows = digits.target, np.arange(len(images))
    rest, test = train_test_split(rows, test_size=0.2, random_state=0, stratify=classes)
    train, validation = train_test_split(rest, test_size=0.125, random_state=0, stratify=classes[rest])
    splits = {"train": train, "validation": validation, "test": test}
    return {name: images.select(chosen) for name, chosen in splits.items()}


def _load(source: str, files: Iterable[Path], **options: Any) -> Any:
    """`load_dataset` with a cache for the content of these files; its own is for paths and times of change, which files
    of other content can have."""
    digests = [sha256(file) for file in sorted(files) if file.is_file()]
    key = hashlib.sha256("".join(digests).encode()).hexdigest()
    try:
        return load_dataset(source, description=key, **options)
    except (DatasetGenerationError, ValueError, OSError) as error:
        where = options.get("data_files", source)
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split())[:200] or type(cause).__name__
        raise InputError(f"expected rows of a table, or images, in {where}; cannot read them: {reason}") from error


def folder_digest(folder: Path) -> str:
    """The SHA-256 of the files in a folder, with their folders but without their names; hidden ones do not count."""
    lines = []
    for name in glob.glob("**", root_dir=folder, recursive=True):
        file = folder / name
        if file.is_file():
            lines.append(f"{Path(name).parent} {sha256(file)}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
