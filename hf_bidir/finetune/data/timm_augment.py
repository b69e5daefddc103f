"""timm's augmentation of images, with random numbers that depend on the batch alone."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from hf_bidir.common.errors import InputError
from hf_bidir.common.extras import install

SIZE = 224  # required by timm; without cropping it only bounds translations in pixels, which RandAugment does not use


@dataclass
class TimmAugmentation:
    """A policy of operations on images, and random erasing of pixels (Zhong et al. 2020).

    Attributes:
        policy: in timm's notation: "rand-m6-n2-mstd0.5-inc1" (RandAugment, Cubuk et al. 2020), "augmix-m3", "3a",
            "original"; None for none.
        erase: the probability that a rectangle of an image becomes 0.

    Raises:
        InputError: timm is not installed, does not know the policy, or `erase` is no probability.
    """

    policy: str | None = None
    erase: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.erase <= 1:
            raise InputError(f"expected erase between 0 and 1; got {self.erase}")
        if not self:
            return
        try:
            from timm.data import create_transform
            from timm.data.random_erasing import RandomErasing
        except ImportError as error:
            raise InputError(f"--augment and --erase need timm: {install('vision')}") from error
        options = {"is_training": True, "color_jitter": None, "separate": True}
        try:
            _, self._change, _ = create_transform(SIZE, auto_augment=self.policy, **options)
        except (AssertionError, ValueError, KeyError) as error:
            raise InputError(
                f"timm knows no augmentation {self.policy!r}; try rand-m6-n2-mstd0.5-inc1, augmix-m3, 3a or original"
            ) from error
        self._erasing = RandomErasing(self.erase, device="cpu")

    def __bool__(self) -> bool:
        return bool(self.policy or self.erase)

    def images(self, images: list[Image], generator: torch.Generator) -> list[Image]:
        """The images changed by the policy."""
        with _seeded(generator):
            return [self._change(image) for image in images] if self.policy else images

    def pixels(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """The normalised pixels `[batch, channels, height, width]`, with rectangles at 0, in place."""
        with _seeded(generator):
            return self._erasing(pixels) if self.erase else pixels


@contextmanager
def _seeded(generator: torch.Generator) -> Iterator[None]:
    """Seed the global generators that timm uses from `generator`, and restore their states afterwards."""
    before, seed = (random.getstate(), np.random.get_state()), int(torch.randint(2**31, (), generator=generator))
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
