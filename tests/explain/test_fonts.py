"""Figures with characters that the default font of matplotlib lacks."""

import warnings

import matplotlib
import pytest
from matplotlib.text import Text

from hf_bidir.explain import text_heatmap
from hf_bidir.explain.draw import fonts

WITHOUT_LETTERS = "cmex10"  # a font of brackets, which matplotlib brings


@pytest.fixture(autouse=True)
def strict():
    """Any warning of matplotlib is an error, and no other test has filled the caches."""
    for cached in (fonts._family_with, fonts._warn):
        cached.cache_clear()
    with matplotlib.rc_context({"font.family": [WITHOUT_LETTERS]}), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_character_that_the_font_lacks_is_drawn_in_an_installed_one(tmp_path, caplog):
    figure = text_heatmap(["был", "good"], [1.0, -1.0], path=tmp_path / "scores.png")
    (word,) = (text for text in figure.findobj(Text) if text.get_text() == "был")
    assert word.get_family()[0] == WITHOUT_LETTERS
    assert not fonts._lacking("был", word.get_family())
    assert not caplog.text


def test_characters_that_no_font_has_are_one_line(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(fonts, "_installed", lambda: ["cmr10"])  # has Latin letters only
    text_heatmap(["был", "good"], [1.0, -1.0], path=tmp_path / "scores.png")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, lines
    assert "has the characters б л ы −," in lines[0]
    assert 'matplotlib.rcParams["font.family"]' in lines[0]
