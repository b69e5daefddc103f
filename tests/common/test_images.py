"""One picture in every form that image files have gives the same pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from hf_bidir.common.images import open_image

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)
GREY = Image.fromarray(RAMP)
DEEP = Image.fromarray(RAMP.astype(np.uint16) * 257)


def saved(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return Image.open(stream)


def pgm(values):
    """The file of a grey image of 16 bits, which Pillow reads but does not write."""
    return Image.open(io.BytesIO(b"P5 16 16 65535\n" + (values.astype(">u2") * 257).tobytes()))


def paletted():
    """The ramp as indices into a palette that runs backwards."""
    image = Image.fromarray(255 - RAMP, "P")
    image.putpalette(np.repeat(np.arange(255, -1, -1), 3).astype(np.uint8).tobytes())
    return image


FORMS = {
    "PNG": lambda: saved(GREY, "PNG"),
    "RGB": lambda: saved(GREY.convert("RGB"), "BMP"),
    "palette": lambda: saved(paletted(), "PNG"),
    "CMYK": lambda: saved(GREY.convert("RGB").convert("CMYK"), "TIFF"),
    "first frame of an animation": lambda: saved(GREY, "GIF", save_all=True, append_images=[Image.new("L", (16, 16))]),
    "16 bits": lambda: saved(DEEP, "PNG"),
    "16 bits, big-endian": lambda: Image.fromarray(RAMP.astype(">u2") * 257),
    "16 bits in PGM": lambda: pgm(RAMP),
    "32 bits": lambda: saved(Image.fromarray(RAMP.astype(np.int32)), "TIFF"),
    "floating point": lambda: saved(Image.fromarray(RAMP.astype(np.float32) / 255), "TIFF"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_picture_gives_the_same_pixels(form):
    opened = open_image(FORMS[form]())
    assert opened.mode == "RGB"
    np.testing.assert_array_equal(opened, np.repeat(RAMP[..., None], 3, -1))
    np.testing.assert_array_equal(open_image(FORMS[form](), "L"), RAMP)


CLEAR = Image.fromarray(np.stack([np.zeros_like(RAMP), RAMP], -1), "LA")  # black ink, from clear to opaque
WHERE_ZERO = np.where(RAMP == 0, 255, RAMP)
TRANSPARENT = {
    "LA": (CLEAR, "PNG", {}, 255 - RAMP),
    "RGBA": (CLEAR.convert("RGBA"), "PNG", {}, 255 - RAMP),
    "one grey": (GREY, "PNG", {"transparency": 0}, WHERE_ZERO),
    "one entry of a palette": (paletted(), "GIF", {"transparency": 255}, WHERE_ZERO),
    "alpha of a palette": (paletted(), "PNG", {"transparency": bytes(range(255, -1, -1))}, None),
    "one grey of 16 bits": (DEEP, "PNG", {"transparency": 0}, WHERE_ZERO),
}


@pytest.mark.parametrize("kind", TRANSPARENT)
def test_transparent_pixels_are_composed_over_white(kind):
    image, suffix, options, expected = TRANSPARENT[kind]
    if expected is None:  # a pixel of the value v has the alpha v
        expected = np.rint(RAMP * (RAMP / 255) + 255 - RAMP)
    np.testing.assert_allclose(np.asarray(open_image(saved(image, suffix, **options), "L"), int), expected, atol=1)


@pytest.mark.parametrize("image", [GREY, DEEP], ids=["8 bits", "16 bits"])
def test_the_orientation_of_the_camera_is_applied_once(image, tmp_path):
    turned = image.crop((0, 0, 16, 4))
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    turned.save(tmp_path / "photo.png", exif=exif)
    expected = np.rot90(RAMP[:4], -1)
    np.testing.assert_array_equal(open_image(tmp_path / "photo.png", "L"), expected)
    np.testing.assert_array_equal(open_image(open_image(Image.open(tmp_path / "photo.png")), "L"), expected)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.full((2, 2), 70_000, np.int32), "from 0 to 255 for mode I; got 70000 to 70000"),
        (np.full((2, 2), -1, np.int32), "got -1"),
        (np.full((2, 2), 200, np.float32), "from 0 to 1 for mode F; got 200.0 to 200.0; scale them"),
        (np.full((2, 2), np.nan, np.float32), "got nan"),
    ],
)
def test_values_whose_white_is_unknown_are_refused(values, said):
    with pytest.raises(ValueError, match=said):
        open_image(Image.fromarray(values))


def test_what_is_not_an_image_or_cannot_be_converted_is_refused(tmp_path):
    with pytest.raises(ValueError, match="La"):
        open_image(Image.new("La", (2, 2)))
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(ValueError, match=r"text\.png"):
        open_image(tmp_path / "text.png")
    with pytest.raises(FileNotFoundError, match=r"absent\.png"):
        open_image(tmp_path / "absent.png")
