"""Images as texts for recurrent models: the grey levels of their regions, row by row."""

from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Features, Value

from hf_bidir.finetune.data.image_files import read_digits, read_idx

SIDES = {"digits": 8, "fashion-mnist": 7}  # regions in a row: single pixels, and means of 4x4 pixels
LEVELS = 16  # the brightest; 0 is the darkest
ROWS = {"train": 10_000, "validation": 1000, "test": 2000}  # of Fashion-MNIST


def image_splits(task: str, folder: Path | None) -> dict[str, Dataset]:
    """The splits of a task, with the columns `text` and `label`.

    Args:
        task: a name in `SIDES`.
        folder: the IDX files of Fashion-MNIST.
    """
    if task == "digits":
        return {name: as_texts(split, SIDES[task]) for name, split in read_digits().items()}
    train, test = (read_idx(folder / f"{part}-images-idx3-ubyte.gz") for part in ("train", "t10k"))
    shuffled, size = train.shuffle(seed=0), ROWS["train"]
    splits = {
        "train": shuffled.select(range(size)),
        "validation": shuffled.select(range(size, size + ROWS["validation"])),
        "test": test.select(range(ROWS["test"])),
    }
    return {name: as_texts(split, SIDES[task]) for name, split in splits.items()}


def as_texts(images: Dataset, side: int) -> Dataset:
    """Each image as `side * side` words of grey levels: "grey0 grey12 …"."""
    texts = []
    for image in images["image"]:
        pixels = np.asarray(image, dtype=float)
        step = pixels.shape[0] // side
        grey = pixels.reshape(side, step, side, step).mean((1, 3)) * LEVELS / 255
        texts.append(" ".join(f"grey{level}" for level in grey.round().astype(int).flatten()))
    names = [str(label) for label in sorted(set(images["label"]))]
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    return Dataset.from_dict({"text": texts, "label": list(images["label"])}, features=features)
