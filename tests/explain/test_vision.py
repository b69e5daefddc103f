"""Photographs of any size: what the model sees of them, its special tokens, and the scores over them."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessor, ViTImageProcessor

from hf_bidir.explain import explain, read_image
from tests.explain.conftest import family

SIZE = {"height": 24, "width": 24}
REGISTERS = "Dinov2WithRegistersForImageClassification"
OTHERS = ["special token 2", "special token 3", "special token 4", "special token 5"]
MODELS = {  # tokens before the patches
    "ViTForImageClassification": ["class token"],
    "DeiTForImageClassification": ["class token", "special token 2"],
    REGISTERS: ["class token", *OTHERS],
    "CLIPVisionModel": ["class token"],
    "SiglipVisionModel": [],
}


def model_of(name: str = "ViTForImageClassification", **options):
    return family(name, **{"image_size": 24, "patch_size": 2, "vision_use_head": False} | options)


def processor(**size):
    return ViTImageProcessor(size=SIZE | size)


@pytest.fixture
def photo():
    """A landscape of 60 x 90 pixels, dark on the left and bright on the right."""
    values = np.linspace(0, 255, 90, dtype=np.uint8)[None, :, None].repeat(60, 0).repeat(3, 2)
    return Image.fromarray(values)


@pytest.mark.parametrize("name", MODELS)
def test_patches_are_the_last_tokens_whatever_stands_before_them(name, photo):
    example, leading = read_image(model_of(name), processor(), photo), MODELS[name]
    patches = [f"patch in row {row}, column {column}" for row in range(12) for column in range(12)]
    assert example.tokens == leading + patches
    assert example.special == [True] * len(leading) + [False] * 144


@pytest.mark.parametrize(
    ("name", "cropping"), [("ViTForImageClassification", False), (REGISTERS, False), ("CLIPVisionModel", True)]
)
def test_a_photograph_of_any_size_is_used_as_a_whole(name, cropping, photo):
    model = model_of(name)
    prepare = CLIPImageProcessor(size={"shortest_edge": 24}, crop_size=SIZE) if cropping else processor()
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    found = explain(model, prepare, photo, "contributions", size=30)
    assert found.example.grid == (15, 22)  # 30 x 45 pixels, rounded to patches of 2
    columns = found.example.inputs["pixel_values"][0, 0].mean(0)
    assert (columns.diff() > -1e-3).all()  # all of the photo, from dark to bright
    assert columns[-1] - columns[0] > 0.9 / max(prepare.image_std)
    assert found.scores.isfinite().all()
    assert found.scores.any()
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks
    if name.startswith("ViT"):  # the model is left as it was
        with pytest.raises(ValueError, match="image size"):
            model(torch.zeros(1, 3, 30, 44))


@pytest.mark.parametrize("shape", [(12, 24), (6, 24)])  # 72 patches, and 36, which a square has too
def test_positions_of_oblong_images_are_not_interpolated_as_those_of_squares(shape, photo):
    model = model_of(image_size=shape)
    assert read_image(model, processor(height=shape[0]), photo).grid == (shape[0] // 2, 12)
    with pytest.raises(ValueError, match=f"images of {shape[0]} x 24 pixels, got 30 x 44: .* leave out size"):
        read_image(model, processor(height=shape[0]), photo, size=30)


def test_an_explained_photograph_is_drawn_alone_and_under_its_scores(photo):
    found = explain(model_of(), processor(), photo, "contributions")
    first, second = (axes.images[1].get_array() for axes in found.plot().axes if len(axes.images) == 2)
    assert not first.any()
    np.testing.assert_allclose(second, found.scores[1:].unflatten(0, (12, 12)), atol=1e-6)


def test_the_smallest_size_is_a_patch(photo):
    assert read_image(model_of(), processor(), photo, size=2).grid == (1, 2)  # 2 x 3 pixels, rounded to even


@pytest.mark.parametrize(
    ("image", "options", "named"),
    [
        (torch.zeros(3, 24, 24), {}, "got a Tensor"),
        (Image.new("RGB", (30, 30)), {"size": 1}, "one patch, 2 pixels; got 1"),
    ],
)
def test_what_is_no_image_or_too_small_is_refused(image, options, named):
    with pytest.raises(ValueError, match=named):
        read_image(model_of(), processor(), image, **options)
