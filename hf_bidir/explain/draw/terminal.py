"""Signed scores as the background of a text on a terminal of 256 colours."""

from typing import Any

import click

from hf_bidir.explain.draw.figures import Color, text_color_on
from hf_bidir.explain.draw.page import sections_of
from hf_bidir.explain.inputs.text import visible

CLEAR = 0.05  # share of the largest magnitude below which a word keeps the colours of the terminal


def coloured(result: Any) -> str:
    """The text of an `Explanation`, red where it supports y and blue where it opposes it; empty for an image."""
    section = next(sections_of(result))
    if result.is_generated or section.figure is not None:
        return ""
    (line,) = section.lines
    words = []
    for token, score in zip(map(visible, line.tokens), line.scores, strict=True):
        if abs(score) >= CLEAR * section.scale.limit:
            color = section.scale.color(score)
            token = click.style(f" {token} ", bg=_in_cube(color), fg=text_color_on(color))
        words.append(token)
    return " ".join(words)


def _in_cube(color: Color) -> int:
    """The nearest of the 6 × 6 × 6 colours that begin at number 16."""
    red, green, blue = (round(5 * part) for part in color[:3])
    return 16 + 36 * red + 6 * green + blue
