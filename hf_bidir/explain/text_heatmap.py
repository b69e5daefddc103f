"""Signed scores drawn behind the words they belong to, as a figure or as a web page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from torch import Tensor

from hf_bidir.explain.colors import as_array, color_of, limit_of, signed, signed_colorbar, text_color_on
from hf_bidir.explain.page import TextBlock, html_page, write_page

Scores = Tensor | np.ndarray | Sequence[float]

WIDTH = 9.0  # inches, as all of these
HEADING, LINE, SCALE, CAPTION, MARGIN = 0.35, 0.42, 0.7, 0.25, 0.2
FONT, NUMBER_FONT = 11, 7  # points
NARROWEST = 0.38  # inches: a number under a short word has room
NUMBERED_SHARE = 0.1  # a word beyond this share of the largest score gets its number printed


def text_heatmap(
    tokens: Sequence[str],
    scores: Scores | Mapping[str, Scores],
    *,
    unit: str = "score",
    caption: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Write a text with its signed scores as colours behind the words: red for +, blue for −, white for 0.

    Strong words also have their signed number below them, so the figure still reads when printed in grey.

    Args:
        tokens: words or word pieces, `length` of them.
        scores: `[length]`, or several such under their names, drawn one below the other with a scale of their own.
        unit: what a score is, written beside the colour bar.
        caption: one line under the text.
        path: where to save it. ".html" writes a page that holds everything in itself and runs nothing; any other
            ending chooses the format of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: no tokens, or scores that do not fit them or are not finite.
    """
    named = check_scores(tokens, scores)
    figure = Figure(figsize=(WIDTH, 1))
    places = _places(tokens, FigureCanvasAgg(figure).get_renderer())
    block = HEADING + LINE * (1 + places[-1][0]) + SCALE
    height = block * len(named) + MARGIN + CAPTION * bool(caption)
    figure.set_size_inches(WIDTH, height)
    for index, (name, values) in enumerate(named.items()):
        _draw_block(figure, height - block * index, block, tokens, places, name, values, unit)
    if caption:
        figure.text(0.5, MARGIN / 2 / height, caption, ha="center", va="bottom", fontsize=8, parse_math=False)
    if path is not None and Path(path).suffix.lower() == ".html":
        write_page(path, html_page("Signed scores", blocks=text_blocks(tokens, named, unit), caption=caption))
    elif path is not None:
        figure.savefig(path, dpi=120)
    return figure


def text_blocks(tokens: Sequence[str], scores: Scores | Mapping[str, Scores], unit: str) -> list[TextBlock]:
    """The same for `html_page`; arguments and errors as in `text_heatmap`."""
    return [TextBlock(name, tokens, values, unit) for name, values in check_scores(tokens, scores).items()]


def check_scores(tokens: Sequence[str], scores: Scores | Mapping[str, Scores]) -> dict[str, np.ndarray]:
    named = scores if isinstance(scores, Mapping) else {"": scores}
    named = {name: as_array(values) for name, values in named.items()}
    if not len(tokens) or not named:
        raise ValueError("expected at least one token and one row of scores to draw, got none.")
    for name, values in named.items():
        if values.shape != (len(tokens),) or not np.isfinite(values).all():
            raise ValueError(
                f"expected {len(tokens)} finite scores, one per token{f', for {name}' if name else ''}; got the shape "
                f"{values.shape}{'' if np.isfinite(values).all() else ' with NaN or infinity'}."
            )
    return named


def _places(tokens: Sequence[str], renderer) -> list[tuple[int, float, float]]:
    """Line, left edge and width of each token, the latter two in inches."""
    places, line, left = [], 0, MARGIN
    for token in tokens:
        pixels = renderer.get_text_width_height_descent(token, FontProperties(size=FONT), ismath=False)[0]
        width = max(pixels / renderer.dpi + 0.12, NARROWEST)
        if left + width > WIDTH - MARGIN and left > MARGIN:
            line, left = line + 1, MARGIN
        places.append((line, left, width))
        left += width + 0.05
    return places


def _draw_block(figure, top: float, block: float, tokens, places, name: str, values: np.ndarray, unit: str) -> None:
    """One text with its heading and colour bar, in the `block` inches below `top`."""
    height = figure.get_size_inches()[1]
    limit = limit_of(values)
    figure.text(MARGIN / WIDTH, (top - 0.25) / height, name, fontsize=10, fontweight="bold", parse_math=False)
    for token, (line, left, width), value in zip(tokens, places, values, strict=True):
        middle = top - HEADING - LINE * (line + 0.4)
        color = color_of(value, limit)
        box = Rectangle(
            (left / WIDTH, (middle - 0.12) / height), width / WIDTH, 0.24 / height,
            transform=figure.transFigure, facecolor=color, edgecolor="lightgrey", linewidth=0.5,
        )  # fmt: skip
        figure.add_artist(box)
        centred = {"ha": "center", "va": "center", "parse_math": False}
        centre = (left + width / 2) / WIDTH
        figure.text(centre, middle / height, token, fontsize=FONT, color=text_color_on(color), **centred)
        if abs(value) >= NUMBERED_SHARE * limit:
            figure.text(centre, (middle - 0.19) / height, signed(value), fontsize=NUMBER_FONT, **centred)
    bar = figure.add_axes((0.3, (top - block + 0.42) / height, 0.4, 0.1 / height))
    signed_colorbar(figure, limit, unit, cax=bar, orientation="horizontal").ax.tick_params(labelsize=8)
