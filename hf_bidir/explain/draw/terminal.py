"""Signed scores as the colours of a text on a terminal."""

from typing import Any

from rich.console import Console
from rich.text import Text

from .page import TEMPLATE, sections_of

COLORED_SHARE = 0.1  # of the limit, from which a word has a background; a weaker one would be a white bar on black


def print_words(result: Any) -> None:
    """Print the text or prompt on a terminal with colours, red where it supports y and blue where it opposes it.

    Nothing for an image, and for the source of an encoder-decoder, which has a row per generated token.
    """
    console = Console()
    if console.color_system is None or console.no_color or result.listing is None:
        return
    section = next(sections_of(result))
    for line in section.lines:
        text = Text(line.label)
        colored = line.listing.shown.abs() >= COLORED_SHARE * section.scale.limit
        for is_colored, (word, _, background, color, mark) in zip(colored, section.words(line), strict=True):
            style = f"{color} on {background}" if is_colored else ""
            text.append(" ").append(word, "dim" if mark == TEMPLATE else style)
        console.print(text)
