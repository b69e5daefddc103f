"""Image classification data: read, check, augment, and turn into batches of pixels."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from datasets import Dataset, Image
from PIL import Image as Pillow
from PIL import ImageOps
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoImageProcessor, BaseImageProcessor, PretrainedConfig

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.images import open_image
from hf_bidir.finetune.arguments import ImageColumnArguments, ImageDataArguments
from hf_bidir.finetune.data.image_files import DIGITS, read_digits, read_images
from hf_bidir.finetune.data.problems import Problems, listed
from hf_bidir.finetune.data.splits import Splits, labelled_split, labelled_splits, raw_splits
from hf_bidir.finetune.data.timm_augment import TimmAugmentation

NO_IMAGES = "expected images, or the bytes of image files, in the image column: "
IMAGE_COLUMNS = ("image", "img", "pixels")
LARGEST_GUESSED_SIZE = 64  # a new model is small, and its time grows with the square of the number of patches
MEAN = STD = (0.5, 0.5, 0.5)


def read_image_splits(data: ImageDataArguments) -> Splits:
    """Read the splits with the columns `image` (decoded when a row is read) and `label`.

    Raises:
        InputError: the data cannot be used; see `labelled_splits`, and every image must be readable.
    """
    from_digits = data.dataset_name == DIGITS and not data.files
    raw = read_digits() if from_digits else raw_splits(data, read_images)
    splits = labelled_splits(raw, data, data.image_column, IMAGE_COLUMNS, _check_rows if data.check_images else None)
    with as_input_error(NO_IMAGES, Exception):
        return splits.map(lambda split: split.cast_column("image", Image()))


def read_image_split(
    file: str, data: ImageDataArguments, names: list[str], name: str, values: list[str] | None = None
) -> Dataset:
    """Read one split, `image` and `label`, for a model with the classes `names`; errors as in `read_image_splits`."""
    columns = (data.image_column, IMAGE_COLUMNS)
    split = labelled_split(read_images(file, split=name), data, *columns, names, name, values, file, _check_rows)
    return split.cast_column("image", Image())


def _check_rows(name: str, split: Dataset, problems: Problems) -> None:
    """Rows whose image cannot be opened are a problem."""
    try:
        unreadable = dict(unreadable_images(name, split.cast_column("image", Image())))
    except Exception as error:
        problems.column(name, f"{problems.title(name)}: {NO_IMAGES}{error}")
    else:
        problems.add(name, f"no readable image: {listed(list(map(str, unreadable.values())))}", unreadable)


def unreadable_images(name: str, split: Dataset) -> Iterator[tuple[int, str]]:
    """Open every image once; the rows where that fails, with the file, where there is one, and the cause."""
    for row in tqdm(range(len(split)), desc=f"checking {name} images", disable=len(split) < 5000):
        try:
            open_image(split[row]["image"])
        except Exception as error:
            stored = split.cast_column("image", Image(decode=False))[row]["image"] or {}
            path, cause = stored.get("path") or "", str(error)
            if path:  # notes are published, so without the folders above
                name = "/".join(Path(path).parts[-2:])
                cause = f"{name}: {cause.replace(path, name)}"
            yield row, cause


def guessed_image_size(train: Dataset) -> int:
    """The shorter side of the first training image, at most 64 and rounded down to a multiple of 4."""
    side = min(*train[0]["image"].size, LARGEST_GUESSED_SIZE)
    return max(side - side % 4, 4)


def guessed_patch_size(image_size: int) -> int:
    """The largest divisor of the side that gives at least 7 x 7 patches, such as 4 of 28 and 32, and 8 of 64."""
    return max(
        side for side in range(1, image_size + 1) if image_size % side == 0 and (image_size // side >= 7 or side == 1)
    )


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
    vision = getattr(config, "vision_config", config)
    channels, size = getattr(vision, "num_channels", 3), getattr(vision, "image_size", None)
    if channels != 3:
        raise InputError(f"expected a checkpoint for RGB images; {source} has num_channels={channels}")
    try:
        return AutoImageProcessor.from_pretrained(source)
    except (OSError, ValueError) as error:
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
        timm: additional augmentation by timm.
        mode: of the images, as in `open_image`.
    """

    processor: BaseImageProcessor
    shift: float = 0.0
    rotate: float = 0.0
    flip: bool = False
    timm: TimmAugmentation = field(default_factory=TimmAugmentation)
    mode: str = "RGB"

    def __call__(self, examples: Sequence[dict]) -> dict[str, Tensor]:
        """Return `pixel_values` [batch, channels, height, width] and, where there are labels, `labels` [batch]."""
        images = [open_image(example["image"], self.mode) for example in examples]
        augments = self.flip or self.shift or self.rotate or self.timm
        if augments:
            generator = batch_generator(image.tobytes() for image in images)
            images = self.timm.images([self._augmented(image, generator) for image in images], generator)
        pixels = self.processor(images, return_tensors="pt")["pixel_values"]
        if augments:
            pixels = self.timm.pixels(pixels, generator)
        if "label" not in examples[0]:
            return {"pixel_values": pixels}
        return {"pixel_values": pixels, "labels": torch.tensor([example["label"] for example in examples])}

    @classmethod
    def of(cls, processor: BaseImageProcessor, data: ImageColumnArguments, mode: str = "RGB") -> "ImageCollator":
        """The training collator with the augmentation that `data` names."""
        timm = TimmAugmentation(data.augment, data.erase)
        return cls(processor, shift=data.shift, rotate=data.rotate, flip=data.flip, timm=timm, mode=mode)

    def _augmented(self, image: Pillow.Image, generator: torch.Generator) -> Pillow.Image:
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
