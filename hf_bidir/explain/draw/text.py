"""Signed scores as colours behind the words of a text, as a figure or a web page."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from torch import Tensor

from hf_bidir.common.files import save_figure
from hf_bidir.explain.draw.colors import Scale, as_array, text_color_on
from hf_bidir.explain.draw.fonts import Figure, families, silent_missing_glyphs
from hf_bidir.explain.draw.page import TextBlock, rendered, write_page
from hf_bidir.explain.inputs.text import shortened, visible

Scores = Tensor | np.ndarray | Sequence[float]

WIDTH = 9.0  # lengths in inches
HEADING, LINE, SCALE, CAPTION, MARGIN = 0.35, 0.42, 0.7, 0.2, 0.2
CAPTION_WIDTH = 130  # characters
FONT, NUMBER_FONT = 11, 7  # points
NUMBERED_SHARE = 0.1  # share of the largest magnitude from which a word carries its number


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

    Words of large magnitude carry their signed number, so the figure can be read in grey. Words of more than 40
    characters are shortened. If nothing is negative, there is neither blue nor a sign.

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
    figure = Figure(figsize=(WIDTH, 1))
    tokens = [visible(shortened(token)) for token in tokens]
    places = _places(tokens, named, FigureCanvasAgg(figure).get_renderer())
    block = HEADING + LINE * (1 + places[-1][0]) + SCALE
    caption = textwrap.fill(caption, CAPTION_WIDTH) if caption else ""
    height = block * len(named) + MARGIN + CAPTION * len(caption.splitlines())
    figure.set_size_inches(WIDTH, height)
    for index, (name, values) in enumerate(named.items()):
        its_unit = unit if isinstance(unit, str) else unit[name]
        _draw_block(figure, height - block * index, block, tokens, places, name, values, its_unit, limit)
    if caption:
        figure.text(0.5, MARGIN / 2 / height, caption, ha="center", va="bottom", fontsize=8, parse_math=False)
    if path is not None and Path(path).suffix.lower() == ".html":
        blocks = text_blocks(tokens, named, unit, limit=limit)
        write_page(path, rendered("page.html", title="Signed scores", blocks=blocks, caption=caption))
    elif path is not None:
        save_figure(figure, path, dpi=120)
    return figure


def text_blocks(
    tokens: Sequence[str],
    scores: Scores | Mapping[str, Scores],
    unit: str | Mapping[str, str],
    has_signs: bool = False,
    limit: float | None = None,
) -> list[TextBlock]:
    """Blocks for a page; arguments and errors as in `text_heatmap`, `has_signs` as in `TextBlock`."""
    return [
        TextBlock(name, tokens, values, unit if isinstance(unit, str) else unit[name], has_signs, limit)
        for name, values in check_scores(tokens, scores).items()
    ]


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


def _places(tokens: Sequence[str], named: Mapping[str, np.ndarray], renderer) -> list[tuple[int, float, float]]:
    """Line, left edge and width of each token with its numbers; edge and width in inches."""
    numbers = [[Scale.of(values).number(value) for value in values] for values in named.values()]
    places, line, left = [], 0, MARGIN
    for token, *below in zip(tokens, *numbers, strict=True):
        width = 0.12 + max(_inches(token, FONT, renderer), *(_inches(text, NUMBER_FONT, renderer) for text in below))
        if left + width > WIDTH - MARGIN and left > MARGIN:
            line, left = line + 1, MARGIN
        places.append((line, left, width))
        left += width + 0.05
    return places


def _inches(text: str, size: float, renderer) -> float:
    font = FontProperties(family=families(text), size=size)
    with silent_missing_glyphs():
        return renderer.get_text_width_height_descent(text, font, ismath=False)[0] / renderer.dpi


def _draw_block(
    figure, top: float, block: float, tokens, places, name: str, values: np.ndarray, unit: str, limit: float | None
) -> None:
    """Draw one text with its heading and colour bar in the `block` inches below `top`."""
    height = figure.get_size_inches()[1]
    scale = Scale.of(values, limit=limit)
    figure.text(MARGIN / WIDTH, (top - 0.25) / height, name, fontsize=10, fontweight="bold", parse_math=False)
    for token, (line, left, width), value in zip(tokens, places, values, strict=True):
        middle = top - HEADING - LINE * (line + 0.4)
        color = scale.color(value)
        box = Rectangle(
            (left / WIDTH, (middle - 0.12) / height), width / WIDTH, 0.24 / height,
            transform=figure.transFigure, facecolor=color, edgecolor="lightgrey", linewidth=0.5,
        )  # fmt: skip
        figure.add_artist(box)
        centred = {"ha": "center", "va": "center", "parse_math": False}
        centre = (left + width / 2) / WIDTH
        figure.text(centre, middle / height, token, fontsize=FONT, color=text_color_on(color), **centred)
        if abs(value) >= NUMBERED_SHARE * scale.limit:
            figure.text(centre, (middle - 0.19) / height, scale.number(value), fontsize=NUMBER_FONT, **centred)
    bar = figure.add_axes((0.3, (top - block + 0.42) / height, 0.4, 0.1 / height))
    scale.bar(figure, unit, cax=bar, orientation="horizontal").ax.tick_params(labelsize=8)
