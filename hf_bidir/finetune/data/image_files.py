"""Reading images: folders, IDX files, tables of image bytes, and the digits of scikit-learn."""

import glob
import gzip
import hashlib
import logging
import os
import unicodedata
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image, Value
from datasets.data_files import SPLIT_KEYWORDS
from datasets.exceptions import DatasetGenerationError
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm.auto import tqdm

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.files import sha256
from hf_bidir.common.images import is_image_file
from hf_bidir.finetune.data.sources import check_header, existing, load_files, read_table

logger = logging.getLogger(__name__)

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
DIGITS = "digits"
DIGITS_TEST_SHARE, DIGITS_VALIDATION_SHARE = 0.2, 0.1
DIGITS_WHITE = 16  # the scans hold 0 to 16
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # labels, as in `imagefolder` of datasets
SPLIT_NAMES = {name for names in SPLIT_KEYWORDS.values() for name in names}  # train, test, val …
LISTED = 5  # file names in a message


def read_images(path: str, labelled: bool = True, split: str = "train") -> Dataset:
    """Read one split from a folder of class folders, an IDX file, or a table with a column of image bytes.

    Args:
        labelled, split: see `read_image_folder`; whether images of a folder have their class folder as `label`.

    Raises:
        InputError: the path is missing, is of another kind or cannot be read.
    """
    if existing(path).is_dir():
        return read_image_folder(Path(path), labelled, split)
    if path.endswith(ARCHIVES):
        raise InputError(f"expected a folder, a table or an IDX file; unpack {path} and give its folder")
    return read_idx(Path(path)) if "-idx3-ubyte" in path else read_table(path)


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
    if tables := _metadata(folder):
        for table in tables:
            if table.suffix == ".csv":
                check_header(table)
        with as_input_error(f"cannot read {folder} with its metadata: ", DatasetGenerationError, ValueError, OSError):
            every = [f"{glob.escape(str(folder))}/**"]
            return load_files("imagefolder", folder.rglob("metadata.*"), data_files=every, split="train")
    files, others = _listed(folder)
    if others:
        names = ", ".join(str(file.relative_to(folder)) for file in others[:LISTED])
        logger.warning("%d of the files in %s are not images and were left out: %s", len(others), folder, names)
    if not files:
        raise InputError(f"expected images in {folder}{', one folder per class' * labelled}; there are none")
    _check_holds_no_splits(folder, files, labelled, split)
    columns, features = {"image": [str(file) for file in files]}, Features({"image": Image()})
    if labelled:
        classes = columns["label"] = [_class_of(file, folder) for file in files]
        if "" in classes:
            raise InputError(
                f"expected one folder per class in {folder}; {classes.count('')} of {len(files)} images are in no "
                f"class folder, such as {files[classes.index('')].name}"
            )
        features["label"] = ClassLabel(names=sorted(set(classes)))
    return Dataset.from_dict(columns, features)


def folder_digest(folder: Path) -> str:
    """The SHA-256 of the images in a folder and of their classes, whatever the names and the order of the files."""
    files = _listed(folder)[0] + _metadata(folder)
    bar = tqdm(files, desc=f"hashing {folder.name}", disable=len(files) < 5000)
    lines = sorted(f"{_class_of(file, folder)} {sha256(file)}" for file in bar)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _listed(folder: Path) -> tuple[list[Path], list[Path]]:
    """The images in a folder and its sub-folders, and the other files, sorted by path; without hidden ones."""
    listed: tuple[list[Path], list[Path]] = [], []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(parent, name) for name in files if not name.startswith(".")):
            listed[not is_image_file(file)].append(file)
    return sorted(listed[0]), sorted(listed[1])


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


def read_idx(images_file: Path) -> Dataset:
    """Read an IDX image file, gzipped or not, with the label file that lies beside it.

    The label file of `train-images-idx3-ubyte.gz` is `train-labels-idx1-ubyte.gz`.

    Raises:
        InputError: the label file is missing, a file is not IDX, or the counts differ.
    """
    labels_file = images_file.with_name(images_file.name.replace("images-idx3", "labels-idx1"))
    if not labels_file.is_file() or labels_file == images_file:
        raise InputError(
            f"expected the labels of {images_file} beside it, in {labels_file.name}; there is no such file"
        )
    images, labels = _idx_array(images_file, 3), _idx_array(labels_file, 1)
    if len(images) != len(labels):
        raise InputError(f"{images_file} has {len(images)} images and {labels_file} has {len(labels)} labels")
    return _to_dataset(images, labels)


def _idx_array(file: Path, dimensions: int) -> np.ndarray:
    """The unsigned bytes of an IDX file: a magic number 0x0008DD, DD big-endian sizes, then the values."""
    with as_input_error(f"cannot read {file}: ", OSError, EOFError, zlib.error):
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    header = 4 + 4 * dimensions
    sizes = np.frombuffer(content[4:header], ">u4")
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) != header + sizes.prod(dtype=int):
        raise InputError(
            f"expected {dimensions}-dimensional unsigned bytes in IDX format; {file} is not that, or is cut"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)


def read_digits() -> dict[str, Dataset]:
    """The 1,797 handwritten 8x8 digits that scikit-learn carries: 70 % train, 10 % validation, 20 % test.

    The split is stratified by class and always the same.
    """
    digits = load_digits()
    images, classes = (digits.images * 255 / DIGITS_WHITE).round().astype(np.uint8), digits.target
    rest, test = train_test_split(np.arange(len(images)), test_size=DIGITS_TEST_SHARE, random_state=0, stratify=classes)
    share = DIGITS_VALIDATION_SHARE / (1 - DIGITS_TEST_SHARE)
    train, validation = train_test_split(rest, test_size=share, random_state=0, stratify=classes[rest])
    rows = {"train": train, "validation": validation, "test": test}
    return {name: _to_dataset(images[chosen], classes[chosen]) for name, chosen in rows.items()}


def _to_dataset(images: np.ndarray, labels: np.ndarray) -> Dataset:
    """Grey images [count, height, width] and their labels, kept as PNG."""
    encode = Image().encode_example
    features = Features({"image": Image(), "label": Value("int64")})
    return Dataset.from_dict({"image": [encode(image) for image in images], "label": labels.tolist()}, features)
