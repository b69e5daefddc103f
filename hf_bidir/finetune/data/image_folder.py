"""Folders of images: every image counts, whatever its name; its class is the folder that it is in."""

import glob
import hashlib
import logging
import os
import unicodedata
from collections import Counter
from pathlib import Path

from datasets import ClassLabel, Dataset, Features, Image, load_dataset
from datasets.data_files import SPLIT_KEYWORDS
from datasets.exceptions import DatasetGenerationError
from tqdm.auto import tqdm

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.files import sha256
from hf_bidir.common.images import is_image_file

logger = logging.getLogger(__name__)

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # labels, as in `imagefolder` of datasets
SPLIT_NAMES = {name for names in SPLIT_KEYWORDS.values() for name in names}  # train, test, val …
LISTED = 5  # file names in a message


def read_image_folder(folder: Path, labelled: bool = True, split: str = "train") -> Dataset:
    """Read the images in a folder, in the order of their paths, as one split.

    The label of an image is the name of the folder directly under `folder` that it is in, at any depth. Hidden files
    and folders do not count; a warning names other files that are not images. With a metadata.csv, .jsonl or .parquet,
    the columns are those that the builder `imagefolder` of datasets makes.

    Args:
        labelled: whether to add the column `label`, for which every image must be in a folder of its own class.
        split: the split to read, for the error about a folder that holds several.

    Raises:
        InputError: there are no images, one is in no class folder, or the folder holds splits.
    """
    if _metadata(folder):
        with as_input_error(f"cannot read {folder} with its metadata: ", DatasetGenerationError, ValueError, OSError):
            return load_dataset("imagefolder", data_files=[f"{glob.escape(str(folder))}/**"], split="train")
    files, others = _listed(folder)
    if others:
        names = ", ".join(str(file.relative_to(folder)) for file in others[:LISTED])
        logger.warning("%d of the files in %s are not images and were left out: %s", len(others), folder, names)
    if not files:
        raise InputError(f"expected images in {folder}{', one folder per class' * labelled}; there are none")
    _check_holds_no_splits(folder, files, labelled, split)
    columns, features = {"image": [str(file) for file in files]}, Features({"image": Image()})
    if not labelled:
        return Dataset.from_dict(columns, features)
    columns["label"] = [_class_of(file, folder) for file in files]
    if "" in columns["label"]:
        stray = files[columns["label"].index("")]
        raise InputError(
            f"expected one folder per class in {folder}; {columns['label'].count('')} of {len(files)} images are in no "
            f"class folder, such as {stray.name}"
        )
    features["label"] = ClassLabel(names=sorted(set(columns["label"])))
    return Dataset.from_dict(columns, features)


def folder_digest(folder: Path) -> str:
    """The SHA-256 of the images in a folder and of their classes, whatever the names and the order of the files."""
    files = _listed(folder)[0] + _metadata(folder)
    bar = tqdm(files, desc=f"hashing {folder.name}", disable=len(files) < 5000)
    lines = sorted(f"{_class_of(file, folder)} {sha256(file)}" for file in bar)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _listed(folder: Path) -> tuple[list[Path], list[Path]]:
    """The images in a folder and its sub-folders, and the other files, sorted by path; without hidden ones."""
    found: tuple[list[Path], list[Path]] = [], []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(parent, name) for name in files if not name.startswith(".")):
            found[not is_image_file(file)].append(file)
    return sorted(found[0]), sorted(found[1])


def _metadata(folder: Path) -> list[Path]:
    return [file for name in METADATA if (file := folder / name).is_file()]


def _class_of(file: Path, folder: Path) -> str:
    """The name of the class folder, in the one form in which every system writes accents; empty without one."""
    first, *rest = file.relative_to(folder).parts
    return unicodedata.normalize("NFC", first) if rest else ""


def _check_holds_no_splits(folder: Path, files: list[Path], labelled: bool, split: str) -> None:
    """Refuse a folder of splits, and warn of a class that may be one.

    A folder is taken for a split if it has the name of one and, in labelled data, most of its images are in folders of
    its own: a class may be called "train", then its folder holds images.
    """
    parts = [file.relative_to(folder).parts for file in files]
    deeper, names = Counter(path[0] for path in parts if len(path) > 1 + labelled), Counter(path[0] for path in parts)
    splits = sorted(name for name, count in deeper.items() if name.lower() in SPLIT_NAMES and 2 * count > names[name])
    if len(splits) > 1 or splits == list(names):
        example = next((name for name in splits if name.lower() in SPLIT_KEYWORDS[split]), splits[-1])
        raise InputError(
            f"expected one split in {folder}; it has {', '.join(splits)}. Give one folder per option, such as "
            f"--{split}_file {folder / example}"
        )
    if splits and labelled:
        logger.warning(
            "The folder %s has the name of a split and holds folders; its images are of the class %r. If it is a "
            "split, give each split its option, such as --train_file.",
            folder / splits[0],
            splits[0],
        )
