"""Texts with signed scores as a page that runs nothing."""

import re
from html.parser import HTMLParser

import pytest
import torch

from hf_bidir.explain import text_heatmap

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


def colors_behind(page):
    """Red, green and blue behind each word, from 0 to 255."""
    return [tuple(bytes.fromhex(color)) for color in re.findall(r"<b style=\"background: #(\w{6})", page)]


def test_positive_is_red_negative_blue_and_zero_white_on_one_scale():
    red, blue, white = colors_behind(text_heatmap(["for", "against", "neither"], [0.5, -0.5, 0.0]))
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert min(white) > 240
    assert sum(red) == pytest.approx(sum(blue), abs=80)  # equally strong, equally dark


def test_rows_on_one_scale_share_a_colour_bar_and_others_have_their_own():
    shared, own = (text_heatmap(["a"], {"one": [0.2], "two": second}) for second in ([0.2], torch.tensor([0.1])))
    assert (shared.count('class="scale"'), own.count('class="scale"')) == (1, 2)


def test_where_nothing_is_negative_there_are_no_signs():
    assert not re.search(r"[+−]\d", text_heatmap(["a", "b"], [0.1, 0.2]))


def test_nothing_of_a_token_is_run_by_the_page():
    hostile = [HOSTILE, '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"]
    page = Elements(text_heatmap(hostile, [1.0, -1.0, 0.5], unit=HOSTILE, caption=HOSTILE))
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert all(token in page.text for token in hostile)


def test_the_page_shows_every_signed_number(tmp_path):
    page = text_heatmap(["for", "against", "weak"], [0.5, -0.003, 5e-5], unit="a", path=tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)\s*=|url\(|https?:", page)  # nothing from elsewhere
    assert re.findall(r">([^<>]+)</b><small>([^<>]+)<", page) == [
        ("for", "+0.5"),
        ("against", "−0.003"),
        ("weak", "≈0"),
    ]


@pytest.mark.parametrize(
    ("tokens", "scores", "message"),
    [
        ([], [], "of 0 tokens, at least one"),
        (["a", "b"], [1.0], r"each of 2 tokens, .* the shape \(1,\)"),
        (["a"], {"flow": [float("nan")]}, "NaN or infinity for flow"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(tokens, scores, message):
    with pytest.raises(ValueError, match=message):
        text_heatmap(tokens, scores)
