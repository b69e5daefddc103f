"""Signed scores as the colours of a text on a terminal."""

from typing import Any

from rich.console import Console
from rich.text import Text

from hf_bidir.explain.draw.page import sections_of
from hf_bidir.explain.inputs.text import visible

WEAK, STRONG = 0.1, 0.3  # shares of the largest magnitude from which a word has a coloured letter, or background


def print_words(result: Any) -> None:
    """Print the text or prompt on a terminal with colours, red where it supports y and blue where it opposes it.

    Nothing for an image, and for the source of an encoder-decoder, which has a row per generated token.
    """
    console = Console()
    if console.color_system is None or console.no_color or result.listing is None:
        return
    section = next(sections_of(result))
    if section.figure is not None:
        return
    for line in section.lines:
        text, listing = Text(line.label), line.listing
        for token, score, special in zip(listing.tokens, listing.shown.tolist(), listing.special, strict=True):
            color, share = "red" if score > 0 else "blue", abs(score) / section.scale.limit
            style = f"bright_white on {color}" if share >= STRONG else color if share >= WEAK else ""
            text.append(" ").append(visible(token), "dim" if special else style)
        console.print(text)
