"""Photographs of any size: what the model sees of them, its special tokens, and the scores over them."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessor

from hf_bidir.explain import explain, read_image
from tests.explain.conftest import family

SIZE = {"height": 24, "width": 24}
REGISTERS = "Dinov2WithRegistersForImageClassification"
MODELS = {"ViTForImageClassification": 1, REGISTERS: 5, "CLIPVisionModel": 1}  # tokens before the patches


def model_of(name: str = "ViTForImageClassification"):
    return family(name, image_size=24, patch_size=2)


def processor():
    return ViTImageProcessor(size=SIZE)


@pytest.fixture
def photo():
    """A landscape of 60 x 90 pixels, dark on the left and bright on the right."""
    values = np.linspace(0, 255, 90, dtype=np.uint8)[None, :, None].repeat(60, 0).repeat(3, 2)
    return Image.fromarray(values)


@pytest.mark.parametrize("name", MODELS)
def test_a_photograph_of_any_size_is_used_as_a_whole(name, photo):
    model = model_of(name)
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    found = explain(model, processor(), photo, size=30)
    assert found.example.grid == (15, 22)  # 30 x 45 pixels, rounded to patches of 2
    assert len(found.scores) == MODELS[name] + 15 * 22
    assert found.scores.isfinite().all()
    assert found.scores.abs().max() > 0
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks
    if name.startswith("ViT"):  # the model is left as it was
        with pytest.raises(ValueError, match="image size"):
            model(torch.zeros(1, 3, 30, 44))


@pytest.mark.parametrize("shape", [(12, 24), (6, 24)])  # 72 patches, and 36, which a square has too
def test_positions_of_oblong_images_are_not_interpolated_as_those_of_squares(shape, photo):
    model = family("ViTForImageClassification", image_size=shape, patch_size=2)
    oblong = ViTImageProcessor(size=dict(zip(("height", "width"), shape, strict=True)))
    assert explain(model, oblong, photo).example.grid == (shape[0] // 2, 12)
    with pytest.raises(ValueError, match=f"images of {shape[0]} x 24 pixels, got 30 x 44: .* leave out size"):
        explain(model, oblong, photo, size=30)


def test_pixels_without_a_picture_are_refused():
    with pytest.raises(ValueError, match="the path of an image or a PIL image, got a Tensor"):
        read_image(model_of(), processor(), torch.zeros(3, 24, 24))


def test_an_explained_photograph_is_drawn_alone_and_under_its_scores(photo):
    found = explain(model_of(), processor(), photo, "contributions")
    first, second = (axes.images[1].get_array() for axes in found.plot().axes if len(axes.images) == 2)
    assert not first.any()
    np.testing.assert_allclose(second, found.scores[1:].unflatten(0, (12, 12)), atol=1e-6)


def test_an_image_that_is_too_small_is_refused(photo):
    with pytest.raises(ValueError, match="a size of at least one patch, 2 pixels"):
        read_image(model_of(), processor(), photo, size=1)
