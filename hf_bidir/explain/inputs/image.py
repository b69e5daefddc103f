"""Images of any size as model inputs, and where their patches are."""

from itertools import product
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.common.images import image_mode, open_image

from ..forward import ForwardCache
from .text import Example, Place


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
    options = {} if size is None else _whole(patch_size(model), picture, size)
    inputs = {"pixel_values": processor([picture], return_tensors="pt", **options)["pixel_values"]}
    length = ForwardCache(model, inputs).length
    leading = leading_tokens(model, inputs["pixel_values"], length)
    grid = patch_grid(model, inputs["pixel_values"])
    tokens = [f"special token {number + 1}" for number in range(leading)]
    if tokens:
        tokens[0] = "class token"
    places: list[Place] = [None] * leading
    height, width = patch_size(model)
    for row, column in product(*map(range, grid)):
        tokens.append(f"patch in row {row}, column {column}")
        left, top = column * width, row * height
        places.append((left, top, left + width, top + height))
    return Example(
        inputs=inputs,
        tokens=tokens,
        special=[index < leading for index in range(length)],
        token_of_piece=torch.arange(length),
        texts={},
        grid=grid,
        file=file_name(image),
        places=places,
    )


def file_name(image: str | Path | Image.Image) -> str:
    """The name of the file of an image; "" if it is not known."""
    return Path(getattr(image, "filename", "") if isinstance(image, Image.Image) else image).name


def patch_size(model: PreTrainedModel) -> tuple[int, int]:
    """Height and width of an image model's patches, in pixels."""
    size = getattr(getattr(model.config, "vision_config", model.config), "patch_size", None)
    if size is None:
        raise ValueError(f"expected a model with patches; the config of {type(model).__name__} has no patch_size.")
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def patch_grid(model: PreTrainedModel, pixels: Tensor) -> tuple[int, int]:
    """Rows and columns of patches in images `[batch, channels, height, width]`; patches are the last tokens."""
    height, width = patch_size(model)
    return pixels.shape[2] // height, pixels.shape[3] // width


def leading_tokens(model: PreTrainedModel, pixels: Tensor, length: int) -> int:
    """The number of tokens before an image's patches, such as a class token and registers."""
    rows, columns = patch_grid(model, pixels)
    if length < rows * columns or hasattr(model.config, "num_detection_tokens"):  # YOLOS has tokens after the patches
        raise ValueError(
            f"expected one token per patch and none after the patches; {type(model).__name__} attends over {length} "
            f"tokens for {rows} x {columns} patches."
        )
    return length - rows * columns


def _whole(patch: tuple[int, int], picture: Image.Image, size: int) -> dict[str, Any]:
    """The options of a processor that keep the whole image, in whole patches."""
    if size < max(patch):
        raise ValueError(f"expected a size of at least one patch, {max(patch)} pixels; got {size}.")
    scale = size / min(picture.size)
    width, height = picture.size
    sides = {
        "height": max(1, round(height * scale / patch[0])) * patch[0],
        "width": max(1, round(width * scale / patch[1])) * patch[1],
    }
    return {"size": sides, "do_resize": True, "do_center_crop": False}
