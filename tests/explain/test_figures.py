"""Figures: panels, colours, scales and labels."""

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread
from PIL import Image

from hf_bidir.explain import explain, image_heatmap, score_grid
from hf_bidir.explain.draw.figures import COLORS
from tests.explain.conftest import bert, tokenizer

IMAGES = np.linspace(0, 1, 2 * 8 * 8).reshape(2, 8, 8)


def overlays(figure):
    """The coloured layers, one per panel; the first layer of a panel is the grey image."""
    return [axes.images[1] for axes in figure.axes if len(axes.images) == 2]


def texts_of(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def test_the_colour_scale_is_symmetrical_and_shared_by_all_panels():
    scores = torch.zeros(2, 16, requires_grad=True)  # flat patches are accepted
    with torch.no_grad():
        scores[0, 0], scores[1, 15] = -0.75, 0.25
    layers = overlays(image_heatmap(torch.rand(2, 3, 8, 8), scores))
    assert [layer.get_clim() for layer in layers] == [(-0.75, 0.75)] * 2
    np.testing.assert_array_equal(layers[1].get_array(), scores.detach().numpy()[1].reshape(4, 4))


def test_a_negative_patch_is_blue_with_a_minus_and_a_positive_one_red_with_a_plus():
    scores = np.zeros((1, 4, 4))
    scores[0, 0, 3], scores[0, 3, 0] = -1.0, 1.0
    figure = image_heatmap(IMAGES[:1], scores)
    colours = overlays(figure)[0].to_rgba(scores[0])
    assert colours[0, 3, 2] > colours[0, 3, 0]
    assert colours[3, 0, 0] > colours[3, 0, 2]
    signs = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    assert signs == {"−": (6.5, 0.5), "+": (0.5, 6.5)}  # pixel centres of patch (row 0, column 3) and (3, 0)


def test_a_patch_with_score_zero_shows_the_image_untouched_and_without_negative_scores_there_are_no_signs():
    scores = np.zeros((1, 4, 4))
    scores[0, 0, 0] = 1.0
    figure = image_heatmap(IMAGES[:1], scores)
    alpha = overlays(figure)[0].get_alpha()
    assert figure.axes[-1].get_ylim() == (0, 1)
    assert not figure.axes[0].texts
    assert alpha[0, 0] > 0
    assert alpha[1:].max() == 0


def test_the_saved_picture_carries_titles_unit_and_caption(tmp_path):
    figure = image_heatmap(
        IMAGES, np.zeros((2, 16)), titles=["a 3", "a 7"], unit="logit", caption="Two digits", path=tmp_path / "a.png"
    )
    assert [axes.get_title() for axes in figure.axes[:2]] == ["a 3", "a 7"]
    assert figure.axes[-1].get_ylabel() == "logit"
    assert figure.get_supxlabel() == "Two digits"
    assert imread(tmp_path / "a.png").std() > 0


def test_a_photograph_lies_under_every_map_and_maps_beyond_a_row_go_below():
    photo = Image.effect_noise((600, 300), 80)
    figure = image_heatmap(photo, np.ones((7, 20, 40)))
    assert len(overlays(figure)) == 7
    assert {axes.images[0].get_array().shape for axes in figure.axes if axes.images} == {(224, 448)}
    assert len({axes.get_subplotspec().rowspan.start for axes in figure.axes if axes.images}) == 2
    assert not any(axes.texts for axes in figure.axes)  # marks would cover so many patches


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros((2, 17)), "leave the class token out"),
        (np.zeros((3, 16)), "2 images, 3 score grids"),
        (np.full((2, 16), np.nan), "finite"),
    ],
)
def test_scores_that_cannot_belong_to_the_images_are_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        image_heatmap(IMAGES, scores)


def test_a_grid_has_a_signed_number_in_every_strong_cell():
    values = torch.tensor([[0.5, -0.25], [0.0, 0.01]])
    figure = score_grid(values, ["a", "$b"], ["head 0", "head 1"], unit="share", caption="all tokens")
    texts = texts_of(figure)
    assert {"+0.5", "−0.25", "share", "all tokens", "$b", "head 0"} <= set(texts)
    assert "+0.01" not in texts
    figure = score_grid([[1.0]], ["a"], ["b"], caption="many words " * 30)
    assert max(len(line) for line in figure.get_supxlabel().split("\n")) < 91
    with pytest.raises(ValueError, match=r"\(2, 1\), got \(1, 3\)"):
        score_grid([[1.0, 2.0, 3.0]], ["a", "b"], ["c"])


def test_the_figure_of_a_text_has_its_words_in_lines_with_their_numbers():
    found = explain(bert(), tokenizer(), "a good bad film ! " * 2, "erasure", target=1)
    figure = found.plot()
    words, numbers = figure.axes[0].texts[::2], figure.axes[0].texts[1::2]
    assert [word.get_text() for word in words] == ["a", "good", "bad", "film", "!"] * 2
    assert [number.get_text() for number in numbers] == [found.scale().number(s) for s in found.scores[1:-1].tolist()]
    assert {word.get_position()[1] for word in words} == {0.37}


@pytest.mark.parametrize("brightness", [0, 255])
def test_patches_have_the_colours_of_the_bar_on_any_image(brightness):
    scores = np.zeros((1, 2, 2))
    scores[0, 0], scores[0, 1] = (1.0, 0.5), (-0.5, -1.0)
    figure = image_heatmap(np.full((1, 32, 32), brightness, np.uint8), scores)
    figure.set_dpi(60)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3] / 255
    panel = figure.axes[0].get_window_extent()
    for (down, across), score in np.ndenumerate(scores[0]):
        column = int(panel.x0 + (0.1 + 0.8 * across) * panel.width)  # off the marks in the middle of patches
        row = int(len(pixels) - panel.y1 + (0.1 + 0.8 * down) * panel.height)
        np.testing.assert_allclose(pixels[row, column], COLORS(0.5 + score / 2)[:3], atol=0.2)


def test_without_any_score_an_image_keeps_its_black():
    figure = image_heatmap(IMAGES[:1], np.zeros((1, 16)))
    assert figure.axes[0].images[0].get_clim() == (IMAGES[0].min(), IMAGES[0].max())
