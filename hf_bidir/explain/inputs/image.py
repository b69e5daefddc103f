"""Prepare an image of any size for explanation."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import PreTrainedModel

from hf_bidir.common.images import image_mode, open_image
from hf_bidir.explain.forward import ForwardCache, leading_tokens, patch_grid, patch_size
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
    options = {} if size is None else _whole(patch_size(model), picture, size)
    pixels = processor([picture], return_tensors="pt", **options)["pixel_values"]
    rows, columns = patch_grid(model, pixels)
    with torch.no_grad():
        count = leading_tokens(model, pixels, ForwardCache(model, {"pixel_values": pixels}).length)
    leading = ["class token", *(f"special token {number}" for number in range(2, count + 1))][:count]
    patches = [f"patch in row {row}, column {column}" for row in range(rows) for column in range(columns)]
    return Example(
        inputs={"pixel_values": pixels},
        tokens=leading + patches,
        special=[True] * len(leading) + [False] * len(patches),
        token_of_piece=torch.arange(len(leading) + len(patches)),
        grid=(rows, columns),
    )


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
