"""Opening an image file: the one conversion that training, evaluation and explanation share."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

WITH_ALPHA = ("RGBA", "RGBa", "LA", "La", "PA")


@cache
def image_formats() -> list[str]:
    """The formats that Pillow decodes without starting another program; AVIF since Pillow 11.3."""
    Image.init()
    return sorted(Image.OPEN.keys() & {"PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "AVIF"})


def open_image(image: str | Path | Image.Image, mode: str = "RGB") -> Image.Image:
    """Open an image: upright, opaque, with 8 bits per channel.

    - The orientation in EXIF is applied.
    - Integers of 16 bits are scaled from [0, 65535] to [0, 255], floating point from [0, 1]. Integers of 32 bits, whose
      white no format defines, are taken as [0, 255].
    - Transparent pixels are composed over white.
    - A palette gives its colours. CMYK and other colours are converted by Pillow, without colour profiles.
    - An animation gives its first frame, a file of several pages its first page.

    Args:
        image: a file, or a PIL image.
        mode: "RGB", or "L" for one channel.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an image, values outside of those ranges, or a mode that Pillow cannot convert.
    """
    if isinstance(image, Image.Image):
        opened, name = image, "the image"
    else:
        opened, name = _read(image), str(image)
    white = _white(opened)
    try:
        upright = ImageOps.exif_transpose(opened)
        if white is not None:
            upright = _eight_bits(upright, white)
        return _opaque(upright).convert(mode)
    except ValueError as error:
        raise ValueError(f"cannot convert {name} to {mode}: {error}") from error


def image_mode(config: Any) -> str:
    """The mode of the images that a model with this config takes: "L" with one channel, else "RGB"."""
    config = getattr(config, "vision_config", config)
    return "L" if getattr(config, "num_channels", 3) == 1 else "RGB"


def _read(file: str | Path) -> Image.Image:
    if not isinstance(file, str | Path):
        raise ValueError(
            f"expected the path of an image or a PIL image, without a text (--text); got a {type(file).__name__}."
        )
    if not Path(file).is_file():
        raise FileNotFoundError(f"expected an image file, found none at {file}.")
    try:
        with Image.open(file, formats=image_formats()) as opened:
            opened.load()
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError) as error:
        raise ValueError(f"expected an image ({', '.join(image_formats())}); {file} cannot be read as one.") from error
    return opened


def _eight_bits(image: Image.Image, white: int) -> Image.Image:
    """The image with values in [0, white] scaled to [0, 255]."""
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= white):  # also true of NaN
        raise ValueError(f"expected values from 0 to {white} for mode {image.mode}; got {low} to {high}; scale them")
    scaled = np.rint(values * (255 / white))
    return Image.fromarray(scaled.astype(np.uint8))


def _white(image: Image.Image) -> int | None:
    """The value of white in a mode of more than 8 bits per channel; None for the others."""
    deep_file = image.mode == "I" and image.format in ("PNG", "PPM")  # PGM of 16 bits
    if deep_file or image.mode.startswith("I;16"):
        return 2**16 - 1
    return {"I": 255, "F": 1}.get(image.mode)


def _opaque(image: Image.Image) -> Image.Image:
    """The image over white, where it is transparent."""
    if image.mode not in WITH_ALPHA and "transparency" not in image.info:
        return image
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image)
