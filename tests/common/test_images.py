"""One picture in every form that image files have gives the same pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from hf_bidir.common.images import open_image

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)
GREY, BLACK = Image.fromarray(RAMP), Image.new("L", (16, 16))
DEEP = RAMP.astype(np.uint16) * 257
# of 16 bits, which Pillow reads but does not write
PGM = Image.open(io.BytesIO(b"P5 16 16 65535\n" + DEEP.astype(">u2").tobytes()))
PALETTED = Image.fromarray(255 - RAMP, "P")  # indices into a palette that runs backwards
PALETTED.putpalette(np.repeat(np.arange(255, -1, -1), 3).astype(np.uint8).tobytes())


def saved(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return Image.open(stream)


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(GREY, id="PIL"),
        pytest.param(saved(GREY.convert("RGB").convert("CMYK"), "TIFF"), id="CMYK"),
        pytest.param(saved(PALETTED, "PNG"), id="palette"),
        pytest.param(saved(GREY, "GIF", save_all=True, append_images=[BLACK]), id="first frame of an animation"),
        pytest.param(saved(Image.fromarray(DEEP), "PNG"), id="16 bits"),
        pytest.param(Image.fromarray(DEEP.astype(">u2")), id="16 bits, big-endian"),
        pytest.param(PGM, id="16 bits in PGM"),
        pytest.param(saved(Image.fromarray(RAMP.astype(np.int32)), "TIFF"), id="32 bits"),
        pytest.param(saved(Image.fromarray(RAMP.astype(np.float32) / 255), "TIFF"), id="floating point"),
    ],
)
def test_every_form_of_a_picture_gives_the_same_pixels(image):
    opened = open_image(image)
    assert opened.mode == "RGB"
    np.testing.assert_array_equal(opened, np.repeat(RAMP[..., None], 3, -1))
    np.testing.assert_array_equal(open_image(image, "L"), RAMP)


CLEAR = Image.merge("LA", [BLACK, GREY])  # black ink, from clear to opaque
FIRST_WHITE = np.where(RAMP == 0, 255, RAMP)
OVER_WHITE = RAMP * (RAMP / 255) + 255 - RAMP  # where a pixel of the value v has the alpha v


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        pytest.param(saved(CLEAR, "PNG"), 255 - RAMP, id="LA"),
        pytest.param(saved(CLEAR.convert("RGBA"), "PNG"), 255 - RAMP, id="RGBA"),
        pytest.param(saved(GREY, "PNG", transparency=0), FIRST_WHITE, id="one grey"),
        pytest.param(saved(PALETTED, "GIF", transparency=255), FIRST_WHITE, id="one entry of a palette"),
        pytest.param(saved(PALETTED, "PNG", transparency=bytes(range(256))[::-1]), OVER_WHITE, id="alpha of a palette"),
    ],
)
def test_transparent_pixels_are_composed_over_white(image, expected):
    np.testing.assert_allclose(np.asarray(open_image(image, "L"), int), expected, atol=1.5)


@pytest.mark.parametrize("image", [GREY, Image.fromarray(DEEP)], ids=["8 bits", "16 bits"])
def test_the_orientation_of_the_camera_is_applied_once(image, tmp_path):
    turned = image.crop((0, 0, 16, 4))
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    turned.save(tmp_path / "photo.png", exif=exif)
    opened = open_image(tmp_path / "photo.png")
    np.testing.assert_array_equal(open_image(opened, "L"), np.rot90(RAMP[:4], -1))


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (70_000, np.int32, "from 0 to 255 for mode I; got 70000 to 70000"),
        (-1, np.int32, "got -1"),
        (1.5, np.float32, "from 0 to 1 for mode F; got 1.5 to 1.5; scale them"),
        (np.nan, np.float32, "got nan"),
    ],
)
def test_values_whose_white_is_unknown_are_refused(value, kind, said):
    with pytest.raises(ValueError, match=said):
        open_image(Image.fromarray(np.full((2, 2), value, kind)))


def test_what_is_not_an_image_or_cannot_be_converted_is_refused(tmp_path):
    (tmp_path / "text.png").write_text("not an image")
    for source, said in ((Image.new("La", (2, 2)), "La"), (tmp_path / "text.png", r"text\.png"), (RAMP, "ndarray")):
        with pytest.raises(ValueError, match=said):
            open_image(source)
    with pytest.raises(FileNotFoundError, match=r"absent\.png"):
        open_image(tmp_path / "absent.png")
