"""Signed scores as the colours of a text on a terminal."""

from typing import Any

from rich.console import Console
from rich.text import Text

from hf_bidir.explain.draw.page import TEMPLATE, sections_of


def print_words(result: Any) -> None:
    """Print the text or prompt on a terminal with colours, red where it supports y and blue where it opposes it.

    Nothing for an image, and for the source of an encoder-decoder, which has a row per generated token.
    """
    console = Console()
    if console.color_system is None or console.no_color or result.listing is None:
        return
    section = next(sections_of(result))
    for line in section.lines if section.figure is None else ():
        text = Text(line.label)
        for word, _, background, color, mark in section.words(line):
            text.append(" ").append(word, "dim" if mark == TEMPLATE else f"{color} on {background}")
        console.print(text)
