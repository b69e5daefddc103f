"""Prepare an image of any size for explanation."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.common.images import image_mode, open_image
from hf_bidir.explain.forward import ForwardCache, leading_tokens, patch_grid, patch_size, vision_config
from hf_bidir.explain.inputs.text import Example


def read_image(
    model: PreTrainedModel, processor: Any, image: str | Path | Image.Image, *, size: int | None = None
) -> Example:
    """Prepare an image as model input.

    Args:
        image: a file, or a PIL image, as in `hf_bidir.common.images.open_image`.
        size: by default the processor resizes and crops the image. With a size, the whole image is used in its own
            shape, with a shorter side of about this many pixels, a multiple of the patch size. Explanations interpolate
            position embeddings; a call of your own needs `interpolate_pos_encoding=True`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an image that cannot be opened or converted, a size of less than one patch, or a model that takes
            images of one size only, as every one whose usual images are not square.
    """
    picture = open_image(image, image_mode(model.config))
    if size is None:
        pixels, photo = processor([picture], return_tensors="pt")["pixel_values"], _as_cropped(processor, picture)
    else:
        pixels, photo = _whole(model, processor, picture, size), picture
    rows, columns = patch_grid(model, pixels)
    leading = _leading(model, pixels)
    patches = [f"patch in row {row}, column {column}" for row in range(rows) for column in range(columns)]
    tokens, special = leading + patches, [True] * len(leading) + [False] * len(patches)
    places = torch.arange(len(tokens))
    return Example({"pixel_values": pixels}, tokens, special, places, grid=(rows, columns), photo=photo)


def _as_cropped(processor: Any, picture: Image.Image) -> Image.Image:
    """The part of the image that a processor which resizes and crops keeps, in the image's own resolution."""
    crop = getattr(processor, "crop_size", None) if getattr(processor, "do_center_crop", False) else None
    size = getattr(processor, "size", None) if getattr(processor, "do_resize", False) else None
    if not crop or not size:
        return picture
    crop, size, (width, height) = dict(crop), dict(size), picture.size
    if size.get("shortest_edge"):
        scale_x = scale_y = size["shortest_edge"] / min(width, height)
    else:
        scale_x, scale_y = size["width"] / width, size["height"] / height
    side_x, side_y = min(width, crop["width"] / scale_x), min(height, crop["height"] / scale_y)
    left, top = (width - side_x) / 2, (height - side_y) / 2
    return picture.crop((round(left), round(top), round(left + side_x), round(top + side_y)))


def _whole(model: PreTrainedModel, processor: Any, picture: Image.Image, size: int) -> Tensor:
    """The normalised pixels of the whole image."""
    patch = patch_size(model)
    if size < max(patch):
        raise ValueError(f"expected a size of at least one patch, {max(patch)} pixels; got {size}.")
    scale = size / min(picture.size)
    height, width = (
        max(1, round(side * scale / step)) * step for side, step in zip(picture.size[::-1], patch, strict=True)
    )
    values = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32) / 255
    values = values[..., None] if values.ndim == 2 else values
    if getattr(processor, "do_normalize", True):
        values = (values - np.array(processor.image_mean, np.float32)) / np.array(processor.image_std, np.float32)
    return torch.from_numpy(values).permute(2, 0, 1)[None].contiguous()


@torch.no_grad()
def _leading(model: PreTrainedModel, pixels: Tensor) -> list[str]:
    """Names of the tokens before the patches; their number is measured by running the model."""
    length = ForwardCache(model, {"pixel_values": pixels}).length
    count, registers = leading_tokens(model, pixels, length), getattr(vision_config(model), "num_register_tokens", 0)
    own = {1: ["class token"], 2: ["class token", "distillation token"]}.get(count - registers)
    if own is None:
        return [f"special token {number}" for number in range(1, count + 1)]
    return own + [f"register {number}" for number in range(1, registers + 1)]
