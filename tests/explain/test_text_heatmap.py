"""Texts with signed scores: as a figure, and as a page that runs nothing."""

import re
import warnings
from html.parser import HTMLParser
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from hf_bidir.explain import text_heatmap
from hf_bidir.explain.draw import fonts
from hf_bidir.explain.draw.text import NUMBER_COLOR

WITHOUT_LETTERS = "cmex10"  # a font of brackets, which matplotlib brings
HOSTILE = "<script>alert(1)</script>"


class Elements(HTMLParser):
    """The start tags and the text of a page, as a browser's parser sees them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text += data


def written(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def colors_behind(figure):
    return [box.get_facecolor() for box in figure.artists if isinstance(box, Rectangle)]


def page_of(tmp_path, tokens, scores, **options):
    text_heatmap(tokens, scores, path=tmp_path / "page.html", **options)
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def test_positive_is_red_negative_blue_and_zero_white_on_one_scale():
    red, blue, white = colors_behind(text_heatmap(["for", "against", "neither"], [0.5, -0.5, 0.0]))
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert min(white[:3]) > 0.95
    assert sum(red[:3]) == pytest.approx(sum(blue[:3]), abs=0.3)  # equally strong, equally dark


def test_words_carry_their_signed_number_so_that_grey_prints_can_be_read():
    texts = written(text_heatmap(["for", "against", "weak", "none"], [0.5, -0.25, 0.01, 5e-5]))
    assert {"+0.5", "−0.25", "+0.01", "≈0"} <= set(texts)


def test_rows_on_one_scale_share_a_colour_bar_and_others_have_their_own(tmp_path):
    def bars(units, limit=None):
        figure = text_heatmap(["a", "b"], {"one": [0.1, 1.0], "two": [0.5, 0.9]}, unit=units, limit=limit)
        return len(figure.axes)

    assert (bars("share", 1.0), bars("share"), bars({"one": "a", "two": "Δy"}, 1.0)) == (1, 2, 2)
    page = page_of(tmp_path, ["a"], {"one": [0.2], "two": [0.1]}, limit=1.0)
    assert page.count('class="scale"') == 1


def test_several_rows_of_scores_have_scales_of_their_own(tmp_path):
    scores = {"rollout": [0.1, -0.2], "flow": torch.tensor([3.0, 4.0])}
    units = {"rollout": "share", "flow": "$x_1$"}  # no formula
    texts = written(text_heatmap(["a", "$"], scores, unit=units, caption="$", path=tmp_path / "figure.png"))
    assert {"rollout", "flow", "−0.2", "4", "+0.2   share", "4   $x_1$", "$"} <= set(texts)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_where_nothing_is_negative_there_are_no_signs(tmp_path):
    figure = text_heatmap(["a", "b"], [0.1, 0.2])
    figure.draw_without_rendering()
    assert not [text for text in written(figure) if text.startswith(("+", "−"))]
    assert not re.search(r"[+−]\d", page_of(tmp_path, ["a", "b"], [0.1, 0.2]))


def test_a_long_text_grows_the_figure_instead_of_leaving_it():
    tokens = ["x" * 300, *["word"] * 199]
    figure = text_heatmap(tokens, np.linspace(-1, 1, 200))
    assert "x" * 39 + "…" in written(figure)
    boxes = [box for box in figure.artists if isinstance(box, Rectangle)]
    assert len(boxes) == 200
    assert max(box.get_x() + box.get_width() for box in boxes) <= 1
    assert min(box.get_y() for box in boxes) >= 0
    assert figure.get_size_inches()[1] > 4


def test_numbers_under_short_words_do_not_overlap():
    figure = text_heatmap(["a"] * 5, [-0.0011, 0.0012, -0.0013, 0.0014, -0.0015])
    figure.draw_without_rendering()
    numbers = [text for text in figure.texts if text.get_color() == NUMBER_COLOR]
    extents = [text.get_window_extent() for text in numbers]
    assert len(extents) == 5
    assert all(left.x1 <= right.x0 for left, right in pairwise(extents))


def test_nothing_of_a_token_is_run_by_the_page(tmp_path):
    hostile = [HOSTILE, '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"]
    page = Elements(page_of(tmp_path, hostile, [1.0, -1.0, 0.5], unit=HOSTILE, caption=HOSTILE))
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert all(token in page.text for token in hostile)


def test_the_page_shows_every_signed_number(tmp_path):
    page = page_of(tmp_path, ["for", "against"], [0.5, -0.003], unit="a")
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)\s*=|url\(|https?:", page)  # nothing from elsewhere
    assert re.findall(r">([^<>]+)</b><small>([^<>]+)<", page) == [("for", "+0.5"), ("against", "−0.003")]


@pytest.mark.parametrize(
    ("tokens", "scores", "message"),
    [
        ([], [], "at least one token"),
        (["a"], {}, "at least one"),
        (["a", "b"], [1.0], r"expected 2 finite scores, one per token; got the shape \(1,\)"),
        (["a"], {"flow": [float("nan")]}, "for flow; got the shape .* with NaN"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(tokens, scores, message):
    with pytest.raises(ValueError, match=message):
        text_heatmap(tokens, scores)


@pytest.fixture
def without_letters():
    """Any warning of matplotlib is an error, and no other test has filled the caches."""
    for cached in (fonts._family_with, fonts._warn):
        cached.cache_clear()
    with matplotlib.rc_context({"font.family": [WITHOUT_LETTERS]}), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_character_that_the_font_lacks_is_drawn_in_an_installed_one(without_letters, tmp_path, caplog):
    figure = text_heatmap(["был", "good"], [1.0, -1.0], path=tmp_path / "scores.png")
    (word,) = (text for text in figure.findobj(Text) if text.get_text() == "был")
    assert word.get_family()[0] == WITHOUT_LETTERS
    assert not fonts._lacking("был", word.get_family())
    assert not caplog.text


def test_characters_that_no_font_has_are_one_line(without_letters, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(fonts, "_installed", lambda: ["cmr10"])  # has Latin letters only
    text_heatmap(["был", "good"], [1.0, -1.0], path=tmp_path / "scores.png")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, lines
    assert "has the characters б л ы −," in lines[0]
    assert 'matplotlib.rcParams["font.family"]' in lines[0]
