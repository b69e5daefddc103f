"""Images: read, check, augment, and turn into batches of pixels."""

import logging
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
import transformers
from datasets import Dataset, Image
from PIL import Image as Pillow
from PIL import ImageOps
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoImageProcessor, BaseImageProcessor

from hf_bidir.common.errors import as_input_error
from hf_bidir.common.images import open_image

from ..arguments import DistillationDataArguments, ImageColumnArguments, ImageDataArguments
from .sources import read_images
from .splits import (
    LABEL,
    Column,
    Splits,
    labelled_splits,
    raw_splits,
    sampled,
    unlabelled_splits,
    without_test,
)

logger = logging.getLogger(__name__)

HALF = (0.5, 0.5, 0.5)


def unreadable_rows(split: Dataset, column: str) -> list[int]:
    """Open every image once; the rows where that fails, whose files are logged."""
    rows = []
    encoded = split.select_columns(column).cast_column(column, Image(decode=False))
    for row, example in enumerate(tqdm(encoded, desc="checking images", disable=len(split) < 5000)):
        image = example[column] or {}
        try:
            open_image(Image().decode_example(image))
        except Exception as error:
            logger.warning("Row %d has no readable image (%s): %s", row, image.get("path"), error)
            rows.append(row)
    return rows


IMAGE = Column("image", ("image", "img", "pixels"), Image(), read_images, unreadable_rows)


def read_image_splits(data: ImageDataArguments) -> Splits:
    """The splits with the columns `image`, decoded when a row is read, and `label`; errors as in `labelled_splits`."""
    return labelled_splits(raw_splits(data, IMAGE, LABEL), data, IMAGE)


def read_unlabelled_images(data: DistillationDataArguments) -> Splits:
    """Train and validation with the column `image`, decoded when a row is read.

    Raises:
        InputError: no data, no such file or column, or an image that cannot be read.
    """
    raw = without_test(raw_splits(data, IMAGE))
    return sampled(unlabelled_splits(raw, data, IMAGE), data)


def new_image_processor(image_size: int) -> BaseImageProcessor:
    """A processor that resizes to a square, and maps pixels from [0, 255] to [-1, 1].

    It computes with Pillow, so the numbers do not depend on whether torchvision is installed.
    """
    pillow_backend = getattr(transformers, "ViTImageProcessorPil", None) or transformers.ViTImageProcessor
    # preprocessor_config.json names the class; every version of transformers can load this name
    processor_class = type("ViTImageProcessor", (pillow_backend,), {})
    return processor_class(
        size={"height": image_size, "width": image_size},
        resample=Pillow.Resampling.BILINEAR,
        image_mean=HALF,
        image_std=HALF,
    )


def saved_image_processor(source: str, image_size: int | None = None) -> BaseImageProcessor:
    """The image processor of a checkpoint; with `image_size` it resizes to a square of this side, without cropping.

    Raises:
        InputError: there is none.
    """
    square = {"size": {"height": image_size, "width": image_size}, "do_center_crop": False} if image_size else {}
    with as_input_error(f"expected an image processor in {source}: ", OSError, ValueError):
        return AutoImageProcessor.from_pretrained(source, **square)


@dataclass
class ImageCollator:
    """Batches of examples as pixels and labels.

    Attributes:
        processor: resizes and normalises.
        augmentation: how images are moved, turned and mirrored at random; by default they are not.
        mode: of the images, as in `open_image`.
    """

    processor: BaseImageProcessor
    augmentation: ImageColumnArguments = field(default_factory=ImageColumnArguments)
    mode: str = "RGB"

    def __call__(self, examples: Sequence[dict]) -> dict[str, Tensor]:
        """Return `pixel_values` [batch, channels, height, width] and, where there are labels, `labels` [batch]."""
        images = [open_image(example["image"], self.mode) for example in examples]
        generator = batch_generator(image.tobytes() for image in images)
        images = [self.augmented(image, generator) for image in images]
        batch = {"pixel_values": self.processor(images, return_tensors="pt")["pixel_values"]}
        if "label" in examples[0]:
            batch["labels"] = torch.tensor([example["label"] for example in examples])
        return batch

    def augmented(self, image: Pillow.Image, generator: torch.Generator) -> Pillow.Image:
        """The image mirrored, moved and turned at random."""
        shift, rotate = self.augmentation.shift, self.augmentation.rotate
        if self.augmentation.flip and torch.rand((), generator=generator) < 0.5:
            image = ImageOps.mirror(image)
        if shift or rotate:
            right, down, turn = (2 * torch.rand(3, generator=generator) - 1).tolist()
            translate = (right * shift, down * shift)
            image = image.rotate(turn * rotate, Pillow.Resampling.BILINEAR, translate=translate)
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
