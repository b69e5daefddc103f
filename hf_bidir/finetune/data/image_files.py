"""Reading images: folders, IDX files, tables of image bytes, and the digits of scikit-learn."""

import gzip
import zlib
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, Image, Value
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.image_folder import read_image_folder
from hf_bidir.finetune.data.sources import existing, read_table

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
DIGITS = "digits"
DIGITS_TEST_SHARE, DIGITS_VALIDATION_SHARE = 0.2, 0.1
DIGITS_WHITE = 16  # the scans hold 0 to 16


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


def read_idx(images_file: Path) -> Dataset:
    """Read an IDX image file, gzipped or not, with the label file that lies beside it.

    The label file of `train-images-idx3-ubyte.gz` is `train-labels-idx1-ubyte.gz`.

    Raises:
        InputError: the label file is missing, a file is not IDX, or the counts differ.
    """
    labels_name = images_file.name.replace("images-idx3", "labels-idx1")
    labels_file = images_file.with_name(labels_name)
    if not labels_file.is_file() or labels_file == images_file:
        raise InputError(f"expected the labels of {images_file} beside it, in {labels_name}; there is no such file")
    images, labels = _idx_array(images_file, 3), _idx_array(labels_file, 1)
    if len(images) != len(labels):
        raise InputError(f"{images_file} has {len(images)} images and {labels_file} has {len(labels)} labels")
    return _to_dataset(images, labels)


def _idx_array(file: Path, dimensions: int) -> np.ndarray:
    """The unsigned bytes of an IDX file: a magic number 0x0008DD, DD big-endian sizes, then the values."""
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {file}: {error}") from error
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
    images = (digits.images * 255 / DIGITS_WHITE).round().astype(np.uint8)
    rest, test = _stratified(np.arange(len(images)), digits.target, DIGITS_TEST_SHARE)
    train, validation = _stratified(rest, digits.target, DIGITS_VALIDATION_SHARE / (1 - DIGITS_TEST_SHARE))
    rows = {"train": train, "validation": validation, "test": test}
    return {name: _to_dataset(images[chosen], digits.target[chosen]) for name, chosen in rows.items()}


def _stratified(rows: np.ndarray, labels: np.ndarray, share: float) -> list[np.ndarray]:
    return train_test_split(rows, test_size=share, random_state=0, stratify=labels[rows])


def _to_dataset(images: np.ndarray, labels: np.ndarray) -> Dataset:
    """Grey images [count, height, width] and their labels, kept as PNG."""
    encode = Image().encode_example
    features = Features({"image": Image(), "label": Value("int64")})
    return Dataset.from_dict({"image": [encode(image) for image in images], "label": labels.tolist()}, features)
