"""Signed scores as the colours of a text on a terminal."""

from collections.abc import Iterator
from typing import Any

import click

from hf_bidir.explain.draw.page import Line, sections_of
from hf_bidir.explain.inputs.text import visible

WEAK, STRONG = 0.1, 0.3  # shares of the largest magnitude from which a word has a coloured letter, or background


def coloured(result: Any) -> str:
    """The text or prompt, red where it supports y and blue where it opposes it; empty for an image, and for the source
    of an encoder-decoder, which has a row per generated token."""
    section = next(sections_of(result))
    if section.figure is not None or result.listing is None:
        return ""
    limit = section.scale.limit
    return "\n".join(" ".join(filter(None, [line.label, *_words(line, limit)])) for line in section.lines)


def _words(line: Line, limit: float) -> Iterator[str]:
    for token, score, mark in zip(map(visible, line.tokens), line.scores, line.marks, strict=True):
        color, share = "red" if score > 0 else "blue", abs(score) / limit
        if share >= STRONG:
            yield click.style(f" {token} ", bg=color, fg="bright_white")
        else:
            yield click.style(token, fg=color if share >= WEAK else None, dim=bool(mark) or None)
