"""Signed scores as the background of a text on a terminal of 256 colours."""

from collections.abc import Iterator
from typing import Any

import click

from hf_bidir.explain.draw.figures import Color, text_color_on
from hf_bidir.explain.draw.page import Line, Section, sections_of
from hf_bidir.explain.inputs.text import visible

CLEAR = 0.1  # share of the largest magnitude below which a word keeps the colours of the terminal


def coloured(result: Any) -> str:
    """The text or prompt, red where it supports y and blue where it opposes it; empty for an image, and for the source
    of an encoder-decoder, which has a row per generated token."""
    section = next(sections_of(result))
    if section.figure is not None or result.listing is None:
        return ""
    return "\n".join(" ".join(filter(None, [line.label, *_words(section, line)])) for line in section.lines)


def _words(section: Section, line: Line) -> Iterator[str]:
    for token, score, mark in zip(map(visible, line.tokens), line.scores, line.marks, strict=True):
        if abs(score) >= CLEAR * section.scale.limit:
            color = section.scale.color(score)
            token = click.style(f" {token} ", bg=_in_cube(color), fg=text_color_on(color))
        yield click.style(token, dim=True) if mark else token


def _in_cube(color: Color) -> int:
    """The nearest of the 6 × 6 × 6 colours that begin at number 16."""
    red, green, blue = (round(5 * part) for part in color[:3])
    return 16 + 36 * red + 6 * green + blue
