"""Figures: panels, colours, scales and labels."""

import numpy as np
import pytest
import torch

from hf_bidir.explain import image_heatmap, score_grid
from hf_bidir.explain.draw.figures import Scale, draw_words, text_color_on
from hf_bidir.explain.listing import Listing

IMAGES = np.linspace(0, 1, 2 * 8 * 8).reshape(2, 8, 8)


def overlays(figure):
    """The coloured layers, one per panel; the first layer of a panel is the grey image."""
    return [axes.images[1] for axes in figure.axes if len(axes.images) == 2]


def test_the_colour_scale_is_symmetrical_and_shared_by_all_panels():
    scores = torch.zeros(2, 4, 4, requires_grad=True)
    with torch.no_grad():
        scores[0, 0, 0], scores[1, 3, 3] = -0.75, 0.25
    figure = image_heatmap(torch.rand(2, 3, 8, 8), scores, titles=["a 3", "a 7"], unit="logit")
    layers = overlays(figure)
    assert [layer.get_clim() for layer in layers] == [(-0.75, 0.75)] * 2
    assert [axes.get_title() for axes in figure.axes[:2]] == ["a 3", "a 7"]
    assert figure.axes[-1].get_ylabel() == "logit"
    np.testing.assert_array_equal(layers[1].get_array(), scores.detach().numpy()[1])


def test_strong_patches_carry_their_sign_if_there_are_both():
    scores = np.zeros((1, 4, 4))
    scores[0, 0, 3], scores[0, 3, 0], scores[0, 1, 1] = -1.0, 0.3, 0.29
    texts = image_heatmap(IMAGES[:1], scores).axes[0].texts
    signs = {text.get_text(): text.get_position() for text in texts}
    assert signs == {"−": (3, 0), "+": (0, 3)}  # column and row


def test_a_patch_with_score_zero_shows_the_image_untouched_and_without_negative_scores_there_are_no_signs():
    scores = np.zeros((1, 4, 4))
    scores[0, 0, 0] = 1.0
    figure = image_heatmap(IMAGES[:1], scores)
    alpha = overlays(figure)[0].get_alpha()
    assert figure.axes[-1].get_ylim() == (0, 1)
    assert not figure.axes[0].texts
    assert alpha[0, 0] > 0
    assert alpha[1:].max() == 0
    blank = image_heatmap(IMAGES[:1], np.zeros((1, 4, 4)))
    assert blank.axes[0].images[0].get_clim() == (IMAGES[0].min(), IMAGES[0].max())


def test_images_beyond_a_row_go_below_and_many_patches_carry_no_marks():
    figure = image_heatmap(np.zeros((7, 40, 40)), np.ones((7, 20, 40)) - 2)
    assert len(overlays(figure)) == 7
    assert len({axes.get_subplotspec().rowspan.start for axes in figure.axes if axes.images}) == 2
    assert not any(axes.texts for axes in figure.axes)
    assert list(figure.axes[0].get_yticks()) == [*range(0, 20, 3)]  # thinned, as the columns


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros((2, 16)), r"\(2, 16\)"),
        (np.zeros((3, 4, 4)), "argument 2 is shorter"),
        (np.full((2, 4, 4), np.nan), "finite"),
    ],
)
def test_scores_that_cannot_belong_to_the_images_are_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        image_heatmap(IMAGES, scores)


def test_a_grid_has_a_signed_number_in_every_strong_cell():
    values = torch.tensor([[0.5, -0.25], [0.0, 0.01]])
    figure = score_grid(values, ["a", "$b"], ["head 0", "head 1"], unit="share", caption="many words " * 30)
    panel = figure.axes[0]
    numbers = {text.get_position(): text.get_text() for text in panel.texts if text.get_text()}
    assert numbers == {(0, 0): "+0.5", (1, 0): "−0.25"}
    assert [label.get_text() for label in panel.get_yticklabels()] == ["a", "$b"]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["head 0", "head 1"]
    assert figure.axes[-1].get_ylabel() == "share"
    assert max(map(len, figure.get_supxlabel().split("\n"))) < 91
    with pytest.raises(ValueError, match=r"\(2, 1\), got \(1, 3\)"):
        score_grid([[1.0, 2.0, 3.0]], ["a", "b"], ["c"])


def test_the_figure_of_a_text_has_its_words_in_lines_with_their_numbers():
    listing = Listing("abcdefghijkl", torch.linspace(0, 1.1, 12), [False] * 12)
    figure = draw_words(listing, unit="Δy", scale=Scale(2.0, True))
    texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert [texts[place] for place in [(0, 0), (9, 0), (0, 1), (1, 1)]] == ["a", "j\n+0.9", "k\n+1", "l\n+1.1"]
    assert len(texts) == 12


def test_of_a_long_text_the_parts_around_the_strongest_words_are_drawn_within_two_screens():
    scores = torch.full([3000], 0.02)
    scores[100::300] = torch.linspace(-1, 1, 10)
    listing = Listing([f"w{index}" for index in range(3000)], scores, [False] * 3000)
    figure = draw_words(listing, unit="Δy", scale=Scale(1.0, True))
    drawn = [text.get_text() for text in figure.axes[0].texts]
    assert drawn[:8] == ["…", "w97", "w98", "w99", "w100\n−1", "w101", "w102", "w103"]
    assert sum("\n" in name for name in drawn) == 10
    assert figure.get_size_inches()[1] * figure.dpi < 2 * 1080


@pytest.mark.parametrize(
    ("value", "number"), [(0.00123, "+0.0012"), (-1.0, "−1"), (0.0, "0"), (123.4, "+120"), (1234.0, "+1200")]
)
def test_a_number_has_two_digits(value, number):
    assert Scale(1.0, has_signs=True).number(value) == number


@pytest.mark.parametrize(("blue", "text"), [(0.5, "white"), (1.0, "black")])
def test_a_text_contrasts_with_the_brightness_of_its_background(blue, text):
    assert text_color_on((0.45, 0.5, blue)) == text
