"""Images: read, check, augment, and turn into batches of pixels."""

import logging
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import transformers
from datasets import Dataset, Features, Image, Value
from PIL import Image as Pillow
from PIL import ImageOps
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoImageProcessor, BaseImageProcessor, PretrainedConfig

from hf_bidir.common.errors import InputError
from hf_bidir.common.images import open_image
from hf_bidir.finetune.arguments import DistillationDataArguments, ImageColumnArguments, ImageDataArguments
from hf_bidir.finetune.data.checks import BadRows
from hf_bidir.finetune.data.sources import read_images
from hf_bidir.finetune.data.splits import (
    LABEL,
    Column,
    Splits,
    finished,
    labelled_splits,
    raw_splits,
    sampled,
    without_test,
)

logger = logging.getLogger(__name__)

DIGITS = "digits"
DIGITS_TEST_SHARE, DIGITS_VALIDATION_SHARE = 0.2, 0.1
DIGITS_WHITE = 16  # the scans hold 0 to 16
MEAN = STD = (0.5, 0.5, 0.5)


def unreadable_rows(split: Dataset, name: str, column: str) -> list[int]:
    """Open every image once; the rows where that fails, whose files are logged."""
    rows, stored = [], split.cast_column(column, Image(decode=False))
    for row in tqdm(range(len(split)), desc=f"checking {name} images", disable=len(split) < 5000):
        try:
            open_image(split[row][column])
        except Exception as error:
            file = (stored[row][column] or {}).get("path")
            logger.warning("Row %d of the %s split has no readable image (%s): %s", row, name, file, error)
            rows.append(row)
    return rows


IMAGE = Column("image", ("image", "img", "pixels"), Image(), read_images, unreadable_rows)


def read_image_splits(data: ImageDataArguments) -> Splits:
    """The splits with the columns `image`, decoded when a row is read, and `label`; errors as in `labelled_splits`."""
    digits = data.dataset_name == DIGITS and not data.files
    raw = read_digits() if digits else raw_splits(data, IMAGE, LABEL)
    return labelled_splits(raw, data, IMAGE)


def read_unlabelled_images(data: DistillationDataArguments) -> Splits:
    """Train and validation with the column `image`, decoded when a row is read.

    Raises:
        InputError: no data, no such file or column, or an image that cannot be read.
    """
    raw = without_test(raw_splits(data, IMAGE))
    splits = sampled(finished(raw, data, []), data)
    bad = BadRows({}, drop=False)
    for name, split in splits:
        bad.check(name, split, IMAGE)
    bad.settle(dict(splits))
    return splits


def read_digits() -> dict[str, Dataset]:
    """The 1,797 handwritten 8x8 digits that scikit-learn carries: 70 % train, 10 % validation, 20 % test.

    The split is stratified by class and always the same.
    """
    digits = load_digits()
    pixels = (digits.images * 255 / DIGITS_WHITE).round().astype(np.uint8)
    columns = {"image": [Image().encode_example(image) for image in pixels], "label": digits.target.tolist()}
    images = Dataset.from_dict(columns, Features({"image": Image(), "label": Value("int64")}))
    classes, rows = digits.target, np.arange(len(images))
    rest, test = train_test_split(rows, test_size=DIGITS_TEST_SHARE, random_state=0, stratify=classes)
    share = DIGITS_VALIDATION_SHARE / (1 - DIGITS_TEST_SHARE)
    train, validation = train_test_split(rest, test_size=share, random_state=0, stratify=classes[rest])
    splits = {"train": train, "validation": validation, "test": test}
    return {name: images.select(chosen) for name, chosen in splits.items()}


def new_image_processor(image_size: int | Sequence[int]) -> BaseImageProcessor:
    """A processor that resizes to a square, or to height and width, and maps pixels from [0, 255] to [-1, 1].

    It computes with Pillow, so the numbers do not depend on whether torchvision is installed.
    """
    pillow_backend = getattr(transformers, "ViTImageProcessorPil", None) or transformers.ViTImageProcessor
    # preprocessor_config.json names the class; every version of transformers can load this name
    processor_class = type("ViTImageProcessor", (pillow_backend,), {})
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    size = {"height": height, "width": width}
    return processor_class(size=size, resample=Pillow.Resampling.BILINEAR, image_mean=MEAN, image_std=STD)


def checkpoint_processor(source: str, config: PretrainedConfig) -> BaseImageProcessor:
    """The checkpoint's own image processor, or a new one for its image size if it has none."""
    try:
        return AutoImageProcessor.from_pretrained(source)
    except (OSError, ValueError) as error:
        size = getattr(getattr(config, "vision_config", config), "image_size", None)
        if size is None:
            raise InputError(f"{source} has no image processor, and its config no image_size: {error}") from error
        return new_image_processor(size)


@dataclass
class ImageCollator:
    """Batches of examples as pixels and labels.

    Attributes:
        processor: resizes and normalises.
        shift: each image moves by up to this many of its own pixels along both axes.
        rotate: each image turns by up to this many degrees.
        flip: each image is mirrored with probability 1/2.
        mode: of the images, as in `open_image`.
    """

    processor: BaseImageProcessor
    shift: float = 0.0
    rotate: float = 0.0
    flip: bool = False
    mode: str = "RGB"

    def __call__(self, examples: Sequence[dict]) -> dict[str, Tensor]:
        """Return `pixel_values` [batch, channels, height, width] and, where there are labels, `labels` [batch]."""
        images = [open_image(example["image"], self.mode) for example in examples]
        if self.flip or self.shift or self.rotate:
            generator = batch_generator(image.tobytes() for image in images)
            images = [self.augmented(image, generator) for image in images]
        batch = {"pixel_values": self.processor(images, return_tensors="pt")["pixel_values"]}
        if "label" in examples[0]:
            batch["labels"] = torch.tensor([example["label"] for example in examples])
        return batch

    @classmethod
    def of(cls, processor: BaseImageProcessor, data: ImageColumnArguments, mode: str = "RGB") -> "ImageCollator":
        """The training collator with the augmentation that `data` names."""
        return cls(processor, shift=data.shift, rotate=data.rotate, flip=data.flip, mode=mode)

    def augmented(self, image: Pillow.Image, generator: torch.Generator) -> Pillow.Image:
        """The image mirrored, moved and turned at random."""
        if self.flip and torch.rand((), generator=generator) < 0.5:
            image = ImageOps.mirror(image)
        if self.shift or self.rotate:
            right, down, turn = (2 * torch.rand(3, generator=generator) - 1).tolist()
            translate = (right * self.shift, down * self.shift)
            image = image.rotate(turn * self.rotate, Pillow.Resampling.BILINEAR, translate=translate)
        return image


def batch_generator(examples: Iterable[bytes]) -> torch.Generator:
    """A generator seeded by a batch's content, so that resumed and uninterrupted runs draw the same numbers.

    A stateful stream could not be resumed: the data loader prefetches batches beyond the step of a checkpoint, and
    every worker has its own stream. Numbers differ between epochs because batches are shuffled.

    Args:
        examples: the raw content of each example, in the order of the batch.
    """
    seed = 0
    for content in examples:
        seed = zlib.crc32(content, seed)
    return torch.Generator().manual_seed(seed)
