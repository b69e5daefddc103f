"""Signed scores as colours behind the words of a text, as a figure or a web page."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from torch import Tensor

from hf_bidir.common.files import save_figure
from hf_bidir.explain.draw.colors import Scale, as_array
from hf_bidir.explain.draw.fonts import Figure, families, silent_missing_glyphs
from hf_bidir.explain.draw.page import Content, TextBlock, rendered, write_page
from hf_bidir.explain.inputs.text import shortened

Scores = Tensor | np.ndarray | Sequence[float]

WIDTH = 9.0  # lengths in inches
HEADING, LINE, SCALE, CAPTION, MARGIN = 0.35, 0.45, 0.45, 0.17, 0.2
BAR = (0.5, 1.9)  # where a colour bar begins, and its width
CAPTION_WIDTH = 130  # characters
FONT, NUMBER_FONT = 11, 7  # points
NUMBER_COLOR = "0.3"


def text_heatmap(
    tokens: Sequence[str],
    scores: Scores | Mapping[str, Scores],
    *,
    unit: str | Mapping[str, str] = "score",
    caption: str | None = None,
    path: str | Path | None = None,
    limit: float | None = None,
) -> Figure:
    """Draw a text with its signed scores as colours behind the words: red for +, blue for −, white for 0.

    Words carry their signed number, so the figure can be read in grey. Words of more than 40 characters are shortened.
    If nothing is negative, there is neither blue nor a sign. Rows on the same scale share a colour bar.

    Args:
        tokens: words or word pieces, `length` of them.
        scores: `[length]`, or several such rows by name, drawn one below the other, each with its own scale.
        unit, caption: label of the colour bar, or one for each row by name; text under the figure.
        path: file to save to. ".html" writes a self-contained page without scripts; any other suffix sets the format
            of the figure.
        limit: the magnitude of the strongest colour in every row; by default each row's largest score.

    Raises:
        ValueError: no tokens, or scores that do not fit them or are not finite.
    """
    named = check_scores(tokens, scores)
    units = {name: unit if isinstance(unit, str) else unit[name] for name in named}
    blocks = [
        TextBlock(name, tokens, values, units[name], Scale.of(values, limit=limit)) for name, values in named.items()
    ]
    content = Content("Signed scores", caption=caption or "", blocks=blocks)
    figure = _drawn(content)
    if path is not None and Path(path).suffix.lower() == ".html":
        write_page(path, rendered("page.html", content=content))
    elif path is not None:
        save_figure(figure, path, dpi=120)
    return figure


def _drawn(content: Content) -> Figure:
    """The coloured texts one below the other, as on a page, and the caption."""
    figure = Figure(figsize=(WIDTH, 1))
    places = _places(content.blocks, FigureCanvasAgg(figure).get_renderer())
    caption = textwrap.fill(content.caption, CAPTION_WIDTH)
    heights = [HEADING + LINE * (1 + places[-1][0]) + SCALE * with_bar for _, with_bar in content.barred]
    height = top = sum(heights) + MARGIN + CAPTION * len(caption.splitlines())
    figure.set_size_inches(WIDTH, height)
    for (block, with_bar), its_height in zip(content.barred, heights, strict=True):
        _draw_block(figure, top, block, places)
        top -= its_height
        if with_bar:
            _draw_bar(figure, top + SCALE / 2, block)
    place = (MARGIN / WIDTH, MARGIN / 2 / height)
    figure.text(*place, caption, ha="left", va="bottom", fontsize=8, parse_math=False)
    return figure


def check_scores(tokens: Sequence[str], scores: Scores | Mapping[str, Scores]) -> dict[str, np.ndarray]:
    named = scores if isinstance(scores, Mapping) else {"": scores}
    named = {name: as_array(values) for name, values in named.items()}
    if not len(tokens) or not named:
        raise ValueError("expected at least one token and one row of scores, got none.")
    for name, values in named.items():
        if values.shape != (len(tokens),) or not np.isfinite(values).all():
            raise ValueError(
                f"expected {len(tokens)} finite scores, one per token{f', for {name}' if name else ''}; got the shape "
                f"{values.shape}{'' if np.isfinite(values).all() else ' with NaN or infinity'}."
            )
    return named


def _places(blocks: Sequence[TextBlock], renderer) -> list[tuple[int, float, float, float]]:
    """Line and left edge of each token, its width, and its width with its numbers; edges and widths in inches."""
    places, line, left = [], 0, MARGIN
    numbered = [[number for _, number, *_ in block.words] for block in blocks]
    for (word, *_), *numbers in zip(blocks[0].words, *numbered, strict=True):
        width = 0.12 + _inches(shortened(word), FONT, renderer)
        whole = max(width, *(0.06 + _inches(number, NUMBER_FONT, renderer) for number in numbers))
        if left + whole > WIDTH - MARGIN and left > MARGIN:
            line, left = line + 1, MARGIN
        places.append((line, left, width, whole))
        left += whole + 0.05
    return places


def _inches(text: str, size: float, renderer) -> float:
    font = FontProperties(family=families(text), size=size)
    with silent_missing_glyphs():
        return renderer.get_text_width_height_descent(text, font, ismath=False)[0] / renderer.dpi


def _draw_block(figure, top: float, block: TextBlock, places: list[tuple[int, float, float, float]]) -> None:
    """Draw one text with its heading below `top`, in inches."""
    height = figure.get_size_inches()[1]
    figure.text(MARGIN / WIDTH, (top - 0.25) / height, block.heading, fontsize=10, fontweight="bold", parse_math=False)
    centred: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False}
    for (word, number, background, color), (line, left, width, whole) in zip(block.words, places, strict=True):
        middle, centre = top - HEADING - LINE * (line + 0.4), left + whole / 2
        box = Rectangle(
            ((centre - width / 2) / WIDTH, (middle - 0.12) / height), width / WIDTH, 0.24 / height,
            transform=figure.transFigure, facecolor=background, edgecolor="lightgrey", linewidth=0.5,
        )  # fmt: skip
        figure.add_artist(box)
        figure.text(centre / WIDTH, middle / height, shortened(word), fontsize=FONT, color=color, **centred)
        below = (centre / WIDTH, (middle - 0.19) / height)
        figure.text(*below, number, fontsize=NUMBER_FONT, color=NUMBER_COLOR, **centred)


def _draw_bar(figure, middle: float, block: TextBlock) -> None:
    """Draw the colour bar of a block between its ends, with the unit behind it."""
    height, (left, width) = figure.get_size_inches()[1], BAR
    bar = figure.add_axes(((MARGIN + left) / WIDTH, (middle - 0.06) / height, width / WIDTH, 0.12 / height))
    block.scale.bar(figure, "", cax=bar, orientation="horizontal").set_ticks([])
    beside: dict[str, Any] = {"va": "center", "fontsize": 8, "parse_math": False}
    ends_with = f"{block.bar.end}   {block.bar.unit}"
    figure.text((MARGIN + left - 0.08) / WIDTH, middle / height, block.bar.start, ha="right", **beside)
    figure.text((MARGIN + left + width + 0.08) / WIDTH, middle / height, ends_with, ha="left", **beside)
