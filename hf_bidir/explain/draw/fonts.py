"""A figure whose texts use installed fonts for the characters that the default font lacks."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import matplotlib.figure
from matplotlib import rcParams
from matplotlib.font_manager import FontProperties, findfont, findSystemFonts, fontManager, get_font
from matplotlib.text import Text

logger = logging.getLogger(__name__)

BOXES = "Last Resort High-Efficiency"  # a font of matplotlib with a labelled box for every character


class Figure(matplotlib.figure.Figure):
    """A matplotlib figure that completes the font families of its texts when it is drawn.

    A warning names the characters that no installed font has, once.
    """

    def draw(self, renderer: Any) -> None:
        unknown: set[str] = set()
        for text in self.findobj(Text):
            text.set_fontfamily(families(text.get_text(), text.get_fontfamily()))
            unknown.update(_lacking(text.get_text(), text.get_fontfamily()))
        if unknown:
            _warn(" ".join(sorted(unknown)))
        with silent_missing_glyphs():
            super().draw(renderer)


def families(text: str, first: Sequence[str] | None = None) -> list[str]:
    """Font families for a text: the given ones, by default matplotlib's, then installed ones for what those lack."""
    chosen = list(rcParams["font.family"] if first is None else first)
    others = map(_family_with, _lacking(text, chosen))
    return [*chosen, *dict.fromkeys(family for family in others if family)]


def _lacking(text: str, names: Sequence[str]) -> list[str]:
    """The characters of a text that none of these families can draw."""
    fonts = [_characters(findfont(FontProperties(family=[name]))) for name in names]
    return [char for char in dict.fromkeys(text) if char.isprintable() and not any(ord(char) in font for font in fonts)]


@contextmanager
def silent_missing_glyphs() -> Iterator[None]:
    """Silence matplotlib's warning for each missing glyph; `Figure` names them together."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        yield


@cache
def _family_with(char: str) -> str | None:
    """The first installed family with this character; those without serifs come first."""
    return next((name for name in _installed() if not _lacking(char, [name])), None)


@cache
def _installed() -> list[str]:
    """The font families of this machine, also those that are newer than matplotlib's stored list."""
    for path in set(findSystemFonts()) - {font.fname for font in fontManager.ttflist}:
        with suppress(OSError, RuntimeError, NotImplementedError):  # matplotlib draws no bitmap fonts
            fontManager.addfont(path)
    upright = (font for font in fontManager.ttflist if (font.style, font.weight) == ("normal", 400))
    return sorted({font.name for font in upright} - {BOXES}, key=lambda name: ("Sans" not in name, name))


@cache
def _characters(file: str) -> frozenset[int]:
    """The code points that a font can draw."""
    return frozenset(get_font(file).get_charmap())


@cache
def _warn(characters: str) -> None:
    logger.warning(
        "No installed font has the characters %s, which are drawn as boxes; install one, or name it in "
        'matplotlib.rcParams["font.family"].',
        characters,
    )
