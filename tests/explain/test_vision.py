"""Photographs of any size: what the model sees of them, its special tokens, and maps over them."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessor, ViTImageProcessor

from hf_bidir.explain import contributions, explain, head_maps, photo_heatmap, read_image, vision_maps
from hf_bidir.explain.draw.photo import upsampled
from hf_bidir.explain.record import record_coefficients
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


def test_the_photo_of_a_processor_that_crops_is_the_part_that_it_keeps(photo):
    cropping = CLIPImageProcessor(size={"shortest_edge": 24}, crop_size=SIZE)
    example = read_image(model_of("CLIPVisionModel"), cropping, photo)
    assert example.photo.size == (60, 60)
    kept = np.asarray(example.photo)[0, :, 0]
    assert (kept[0], kept[-1]) == pytest.approx((255 * 15 / 89, 255 * 74 / 89), abs=2)


def test_pixels_without_a_picture_are_refused():
    with pytest.raises(ValueError, match="the path of an image or a PIL image, got a Tensor"):
        read_image(model_of(), processor(), torch.zeros(3, 24, 24))


def test_maps_of_methods_stand_beside_the_photograph(photo, tmp_path):
    figure = vision_maps(model_of(), processor(), photo, ["attention", "contributions"], path=tmp_path / "maps.pdf")
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["photograph", "attention", "contributions"]
    assert "class token" in figure._supxlabel.get_text()
    assert (tmp_path / "maps.pdf").stat().st_size > 1000


def test_a_grid_has_a_map_for_each_layer_and_head(photo):
    model = model_of(REGISTERS)
    figure = head_maps(model, processor(), photo, "contributions", layers=[1], target=0)
    example = read_image(model, processor(), photo)
    scores = contributions(model, example.inputs, 0)[0, 1, :, 5:].unflatten(1, (12, 12))
    drawn = [axes.images[1].get_array() for axes in figure.axes if len(axes.images) == 2]
    assert len(drawn) == 2
    assert "Explained: y, the logit of" in figure.get_supxlabel()
    for grid, picture in zip(scores, drawn, strict=True):
        np.testing.assert_allclose(picture, upsampled(grid.double().numpy(), picture.shape), atol=1e-6)


def test_a_query_patch_selects_its_own_attention(photo):
    model = model_of()
    example = read_image(model, processor(), photo)
    figure = head_maps(model, processor(), photo, "coefficients", layers=[0], heads=[1], query=(2, 3))
    with torch.no_grad():
        row = record_coefficients(model, example.inputs)[1][0][0, 1, 1 + 2 * 12 + 3, 1:]
    drawn = next(axes.images[1].get_array() for axes in figure.axes if len(axes.images) == 2)
    np.testing.assert_allclose(drawn, upsampled(row.unflatten(0, (12, 12)).double().numpy(), drawn.shape), atol=1e-6)


def test_smooth_maps_do_not_exceed_the_scores_of_patches():
    grid = np.random.default_rng(0).normal(size=(5, 7))
    smooth, blocks = upsampled(grid, (50, 70)), upsampled(grid, (50, 70), smooth=False)
    assert (smooth.min(), smooth.max()) == pytest.approx((grid.min(), grid.max()), rel=0.2)
    assert smooth.min() >= grid.min()
    assert smooth.max() <= grid.max()
    np.testing.assert_array_equal(blocks[::10, ::10], grid)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, photo: vision_maps(model, processor(), photo, []), "expected at least one method"),
        (lambda model, photo: head_maps(model, processor(), photo, "rollout"), "a method with scores by head"),
        (lambda model, photo: head_maps(model, processor(), photo, heads=[]), "at least one layer and one head"),
        (lambda model, photo: head_maps(model, processor(), photo, layers=[3]), "layer 3 does not exist"),
        (lambda model, photo: head_maps(model, processor(), photo, query=(12, 0)), "a patch in rows 0 to 11"),
        (lambda model, photo: read_image(model, processor(), photo, size=1), "a size of at least one patch, 2 pixels"),
        (lambda model, photo: photo_heatmap(photo, {}), "at least one map"),
        (lambda model, photo: photo_heatmap(photo, {"a": np.array([[np.nan]])}), "expected finite scores"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(call, message, photo):
    with pytest.raises(ValueError, match=message):
        call(model_of(), photo)
