"""The IDX files of Fashion-MNIST as train.parquet and test.parquet beside them, which every study reads.

python -m research.idx DIR/fashion_mnist
"""

import gzip
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, Image, Value

from research.runs import command_line
from research.synthetic import write_splits

FEATURES = Features({"image": Image(), "label": Value("int64")})
PARTS = {"train": "train", "test": "t10k"}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path, help="holds {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz")
    folder = parser.parse_args().folder
    write_splits({split: read_idx(folder, part) for split, part in PARTS.items()}, folder)


def read_idx(folder: Path, part: str) -> Dataset:
    """The images of a part, kept as PNG, and their labels."""
    images, labels = (values(folder / f"{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    encoded = [Image().encode_example(image) for image in images]
    return Dataset.from_dict({"image": encoded, "label": labels.tolist()}, FEATURES)


def values(file: Path) -> np.ndarray:
    """The unsigned bytes of an IDX file: a magic number 0x0008DD, DD big-endian sizes, then the values."""
    content = gzip.decompress(file.read_bytes())
    dimensions = content[3]
    start = 4 + 4 * dimensions
    sizes = np.frombuffer(content[4:start], ">u4")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


if __name__ == "__main__":
    main()
