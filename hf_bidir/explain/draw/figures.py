"""Figures of signed scores over images, layers and heads, alignments and words."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import SubFigure
from matplotlib.transforms import Bbox
from torch import Tensor

from hf_bidir.common.files import save_figure
from hf_bidir.explain.draw.colors import COLORS, Scale, as_array, text_color_on
from hf_bidir.explain.draw.fonts import Figure
from hf_bidir.explain.inputs.text import shortened

LABELLED = 8  # labelled words of each polarity in a scatter
CAPTION_DENSITY = 15  # characters per inch of a caption
UNNUMBERED_SHARE = 0.05  # share of the largest magnitude below which a cell of layers and heads carries no number
LIGHTENED = 0.6  # brightness of black under colours, which would be dark over black
MARKED_SHARE = 0.3  # share of the largest magnitude from which a patch or cell carries its sign
CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}
DISC = {"boxstyle": "circle,pad=0.05", "facecolor": "white", "alpha": 0.6, "linewidth": 0}
Array = Tensor | np.ndarray


def image_heatmap(
    images: Array,
    scores: Array,
    *,
    titles: Sequence[str] | None = None,
    unit: str = "score",
    caption: str | None = None,
    path: str | Path | None = None,
    figure: Figure | SubFigure | None = None,
    limit: float | None = None,
) -> Figure | SubFigure:
    """Draw each image in grey with its signed patch scores on top: red for +, blue for −, clear for 0.

    All panels share one colour scale, symmetrical around 0, or starting at 0 if nothing is negative. Patches of large
    magnitude carry a + or − sign, so the figure can be read in grey. Rows and columns are numbered from 0.

    Args:
        images: `[batch, height, width]` or `[batch, channels, height, width]`.
        scores: `[batch, rows, columns]`, or `[batch, patches]` for a square grid of patches.
        titles, unit, caption: one title per image, the label of the colour bar, and the text under the panels.
        path: file to save to; the suffix sets the format.
        figure, limit: what to draw into, and the magnitude of the strongest colour; by default the largest score.
    """
    images, scores = _grey(images), _grid(scores)
    titles = [""] * len(images) if titles is None else list(titles)
    if not len(images) == len(scores) == len(titles):
        raise ValueError(
            f"expected one score grid and one title per image; "
            f"got {len(images)} images, {len(scores)} score grids, {len(titles)} titles"
        )
    if figure is None:
        side = 1.6 if len(images) > 3 else 2.8  # inches
        figure = Figure(figsize=(side * len(images) + 1.2, side + 1.1), layout="constrained")
    panels = figure.subplots(1, len(images), squeeze=False)[0]
    scale = Scale.of(scores, limit=limit)
    for panel, image, grid, title in zip(panels, images, scores, titles, strict=True):
        (height, width), (rows, columns) = image.shape, grid.shape
        panel.spines[:].set_color("lightgrey")
        overlay(panel, image, grid, scale, extent=(-0.5, width - 0.5, height - 0.5, -0.5))
        across, down = ((np.arange(n) + 0.5) * side / n - 0.5 for n, side in ((columns, width), (rows, height)))
        panel.set_xticks(across, range(columns), fontsize=7)
        panel.set_yticks(down, range(rows), fontsize=7)
        panel.set_xlabel("column", fontsize=7)
        panel.set_ylabel("row", fontsize=7)
        panel.tick_params(length=0)
        panel.set_title(title, fontsize=9)
        for row, column, sign in _marks(grid, scale):
            panel.text(across[column], down[row], sign, fontsize=9, fontweight="bold", bbox=DISC, **CENTRED)
    scale.bar(figure, unit, ax=panels, shrink=0.9)
    return finish(figure, caption, path)


def _grey(images: Array) -> np.ndarray:
    images = as_array(images)
    grey = images.mean(axis=1) if images.ndim == 4 else images
    if grey.ndim != 3 or not len(grey):
        raise ValueError(
            f"expected images [batch, height, width] or [batch, channels, height, width], got {images.shape}"
        )
    return grey


def _grid(scores: Array) -> np.ndarray:
    scores = as_array(scores)
    if scores.ndim == 2 and isqrt(scores.shape[1]) ** 2 == scores.shape[1]:
        side = isqrt(scores.shape[1])
        scores = scores.reshape(-1, side, side)
    if scores.ndim != 3:
        raise ValueError(
            f"expected scores [batch, rows, columns] or [batch, patches] with a square number of patches "
            f"(leave the class token out), got {scores.shape}"
        )
    if not np.isfinite(scores).all():
        raise ValueError("expected finite scores, got NaN or infinity")
    return scores


def layer_head_grid(
    values: Array,
    *,
    unit: str = "score",
    caption: str | None = None,
    path: str | Path | None = None,
    limit: float | None = None,
) -> Figure:
    """Draw one coloured cell per layer and head, with its signed number unless it is close to 0.

    `values` are `[layers, heads]`, layer 0 at the bottom; other arguments as in `image_heatmap`.
    """
    values = as_array(values)
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise ValueError(f"expected finite values [layers, heads], got {values.shape}")
    layers, heads = values.shape
    width = max(0.48 * heads + 2.2, 4.5)  # inches; narrower figures would break the caption into many lines
    figure = Figure(figsize=(width, 0.36 * layers + 1.5), layout="constrained")
    panel, scale = figure.subplots(), Scale.of(values, limit=limit)
    scale.show(panel, values, origin="lower", aspect="auto")
    panel.set(xlabel="head", ylabel="layer", xticks=range(heads), yticks=range(layers))
    for (layer, head), value in np.ndenumerate(values):
        if abs(value) >= UNNUMBERED_SHARE * scale.limit:
            color = text_color_on(scale.color(value))
            panel.text(head, layer, scale.number(value), fontsize=6, color=color, **CENTRED)
    scale.bar(figure, unit, ax=panel)
    return finish(figure, caption, path)


def alignment_grid(
    written: Sequence[str],
    source: Sequence[str],
    values: Mapping[str, Array],
    *,
    limits: Mapping[str, float | None] | None = None,
    axes: tuple[str, str] = ("generated token", "source token"),
    caption: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw a grid of generated by source words: red for +, blue for −, white for 0.

    Cells of large magnitude carry their sign, so the figure can be read in grey.

    Args:
        written, source: the generated words, one per row, the first one on top; the source words, one per column.
        values: one panel per unit, `[written, source]` each; every panel has its own scale.
        limits: the magnitude of the strongest colour by unit; by default the largest value.
        axes: what rows and columns are.
    """
    grids, shape = {unit: as_array(grid) for unit, grid in values.items()}, (len(written), len(source))
    for unit, grid in grids.items():
        if grid.shape != shape or not grid.size:
            raise ValueError(f"expected values [written, source] = {shape}, not empty, in each panel; got {grid.shape}")
        if not np.isfinite(grid).all():
            raise ValueError(f"expected finite values, got NaN or infinity in the panel {unit!r}")
    size = (max(len(grids) * (0.26 * len(source) + 1.6), 6), 0.26 * len(written) + 1.9)  # inches
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(grids), squeeze=False, sharey=True)[0]
    for panel, (unit, grid) in zip(panels, grids.items(), strict=True):
        scale = Scale.of(grid, limit=(limits or {}).get(unit))
        scale.show(panel, grid, aspect="auto")
        panel.set_xticks(range(len(source)), [shortened(word, 12) for word in source], rotation=90, parse_math=False)
        panel.set_yticks(range(len(written)), [shortened(word, 20) for word in written], parse_math=False)
        panel.tick_params(length=0, labelsize=8)
        panel.xaxis.tick_top()
        panel.xaxis.set_label_position("top")
        panel.set_xlabel(axes[1], fontsize=8)
        for row, column, sign in _marks(grid, scale):
            panel.text(column, row, sign, fontsize=8, color=text_color_on(scale.color(grid[row, column])), **CENTRED)
        scale.bar(figure, unit, ax=panel)
    panels[0].set_ylabel(axes[0], fontsize=8)
    return finish(figure, caption, path)


def word_scatter(
    words: Sequence[str],
    coefficients: Array,
    polarity: Sequence[int] | np.ndarray,
    counts: Sequence[int] | np.ndarray,
    *,
    unit: str = "mean coefficient",
    caption: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw every word at its frequency and mean coefficient, as in Huang, Yang, Wang 2024.

    Positive, negative and neutral words have the markers +, − and a grey dot. The words of largest magnitude of each
    polarity are labelled where labels do not overlap.

    Args:
        words, coefficients, counts: `[length]` each; the mean over the occurrences of a word, and their number.
        polarity: `[length]`, above 0 for positive words, below 0 for negative ones.
    """
    coefficients, polarity, counts = as_array(coefficients), np.sign(as_array(polarity)), as_array(counts)
    if not coefficients.shape == polarity.shape == counts.shape == (len(words),) or not len(words):
        raise ValueError(
            f"expected a coefficient, a polarity and a count for each of {len(words)} words, got "
            f"{coefficients.shape}, {polarity.shape} and {counts.shape}"
        )
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panel = figure.subplots()
    groups = (("neutral", 0, ".", "0.7"), ("positive", 1, "+", COLORS(0.95)), ("negative", -1, "_", COLORS(0.05)))
    for name, sign, marker, color in groups:
        chosen = polarity == sign
        panel.scatter(counts[chosen], coefficients[chosen], s=40, marker=marker, color=color, label=f"{name} words")
    panel.axhline(0, color="black", linewidth=0.5)
    panel.set(xscale="log", xlabel="occurrences", ylabel=unit)
    panel.legend(fontsize=8)
    finish(figure, caption, None).draw_without_rendering()  # fixes the layout, on which overlaps of labels depend
    drawn: list[Bbox] = []
    for sign in (1, -1):
        chosen = polarity == sign
        for index in np.flatnonzero(chosen)[np.argsort(-np.abs(coefficients[chosen]))[:LABELLED]]:
            place, style = (counts[index], coefficients[index]), dict[str, Any](fontsize=7, parse_math=False)
            label = panel.annotate(words[index], place, (4, 2), textcoords="offset points", **style)
            if (box := label.get_window_extent().expanded(1.1, 1.1)).count_overlaps(drawn):
                label.remove()
            else:
                drawn.append(box)
    return finish(figure, None, path)


def finish(figure: Any, caption: str | None, path: str | Path | None, dpi: int = 120) -> Any:
    """The figure with its caption, broken into lines, saved if there is a path."""
    if caption:
        width = int(figure.bbox.width / figure.dpi * CAPTION_DENSITY)
        figure.supxlabel(textwrap.fill(caption, width), fontsize=8, parse_math=False)
    if path is not None:
        save_figure(figure, path, dpi=dpi)
    return figure


def overlay(panel: Any, image: np.ndarray, grid: np.ndarray, scale: Scale, **placing: Any) -> None:
    """A grey image, lightened, under colours that are clear at 0; without any score, the image as it is."""
    low, high = float(image.min()), max(float(image.max()), float(image.min()) + 1e-6)
    darkest = low - (high - low) * LIGHTENED / (1 - LIGHTENED) if grid.any() else low
    panel.imshow(image, cmap="gray", vmin=darkest, vmax=high)
    scale.show(panel, grid, **placing).set_alpha(0.85 * np.sqrt(np.abs(grid) / scale.limit).clip(max=1))


def _marks(grid: np.ndarray, scale: Scale) -> Iterator[tuple[int, int, str]]:
    """Row, column and sign of each cell of large magnitude, if the scale has signs."""
    for row, column in np.argwhere((np.abs(grid) >= MARKED_SHARE * scale.limit) & scale.has_signs):
        yield row, column, "+" if grid[row, column] > 0 else "−"
