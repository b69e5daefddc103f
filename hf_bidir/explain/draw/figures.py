"""Signed scores as matplotlib figures: over images, and as grids of cells. Red for +, blue for −, white for 0."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from torch import Tensor

from ..inputs.text import shortened, signed, visible
from ..listing import Listing

COLORS = colormaps["RdBu_r"]
AROUND = 3  # words of a long text that are drawn on each side of those with a number
NUMBERED_SHARE = 0.05  # share of the limit from which a cell of a grid carries its number
MARKED_SHARE = 0.3  # share of the limit from which a patch carries its sign
MARKED_ROWS = 16  # rows of patches up to which they are marked and all numbered
LIGHTENED = 0.6  # brightness of black under colours, which would be dark over black
WIDE, WORDS = 6, 10  # most images, or words, in a row
CAPTION_DENSITY = 15  # characters per inch of a caption
CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False}
DISC = {"boxstyle": "circle,pad=0.05", "facecolor": "white", "alpha": 0.6, "linewidth": 0}
MARK = CENTRED | {"fontsize": 9, "fontweight": "bold", "bbox": DISC}
Canvas = Any  # Figure | SubFigure
Array = Tensor | np.ndarray | Sequence[Any]
Color = tuple[float, float, float, float]


def as_array(values: Array) -> np.ndarray:
    return torch.as_tensor(values).detach().cpu().double().numpy()


@dataclass(frozen=True)
class Scale:
    """Colour scale from -limit to +limit; without negative values only its half above 0 is shown, without signs."""

    limit: float
    has_signs: bool

    @classmethod
    def of(cls, values: Array, least: float = 0) -> "Scale":
        """The scale that just holds these values; it does not end below `least`."""
        values = as_array(values)
        limit = float(np.abs(values).max(initial=least)) or 1.0
        return cls(limit, has_signs=bool((values < 0).any()))

    @property
    def shading(self) -> dict[str, Any]:
        """The colours as arguments of `imshow`."""
        return {"cmap": COLORS, "vmin": -self.limit, "vmax": self.limit}

    @property
    def ends(self) -> tuple[float, float]:
        return (-self.limit if self.has_signs else 0.0, self.limit)

    def number(self, value: float) -> str:
        """The value with two significant digits."""
        return signed(value, self.has_signs)

    def color(self, value: float) -> Color:
        return COLORS(0.5 + 0.5 * value / self.limit)

    def colors(self, count: int = COLORS.N) -> list[Color]:
        """Evenly spaced colours from one end of the scale to the other."""
        return [self.color(value) for value in np.linspace(*self.ends, count)]

    def draw(self, figure: Canvas, unit: str, **placing: Any) -> None:
        """Draw a colour bar labelled with the unit."""
        mappable = ScalarMappable(Normalize(*self.ends), ListedColormap(self.colors()))
        ticks = sorted({*self.ends, 0.0})
        figure.colorbar(mappable, ticks=ticks, format=lambda tick, _: self.number(tick), label=unit, **placing)


def text_color_on(color: tuple[float, ...]) -> str:
    """Black or white, whichever contrasts more with the background colour."""
    red, green, blue = color[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def image_heatmap(
    images: Array,
    scores: Array,
    *,
    titles: Sequence[str] = (),
    unit: str = "score",
    scale: Scale | None = None,
    figure: Canvas | None = None,
) -> Canvas:
    """Draw images in grey with the signed scores of their patches on top, clear for 0, on one colour scale.

    Patches of large magnitude carry a + or − sign where there are few, so that the figure can be read in grey. Rows and
    columns are numbered from 0.

    Args:
        images: `[batch, height, width]` or `[batch, channels, height, width]`.
        scores: `[batch, rows, columns]` of patches.
        titles, unit: one title per image, and the label of the colour bar.
        scale: by default the one that just holds the scores.
        figure: to draw in; by default a new one.

    Raises:
        ValueError: scores that do not fit the images or are not finite.
    """
    grids = as_array(scores)
    if grids.ndim != 3 or not np.isfinite(grids).all():
        raise ValueError(f"expected finite scores [batch, rows, columns], got the shape {grids.shape}.")
    pictures = as_array(images)
    if pictures.ndim == 4:
        pictures = pictures.mean(axis=1)
    count = len(grids)
    across = min(count, WIDE)
    down = ceil(count / across)
    side = 1.6 if across > 3 else 2.8  # inches
    figure = figure or Figure(figsize=(side * across + 1.2, side * down + 1.1), layout="constrained")
    panels = [figure.add_subplot(down, across, place + 1) for place in range(count)]
    scale = scale or Scale.of(grids)
    for panel, image, grid, title in zip(panels, pictures, grids, titles or [""] * count, strict=True):
        overlay(panel, image, grid, scale)
        panel.set_title(title, fontsize=9, parse_math=False)
    scale.draw(figure, unit, ax=panels, shrink=0.9)
    return figure


def overlay(panel: Any, image: np.ndarray, grid: np.ndarray, scale: Scale) -> None:
    """A grey image, lightened, under colours that are clear at 0; without any score, the image as it is."""
    height, width = image.shape
    rows, columns = grid.shape
    low = float(image.min())
    high = max(float(image.max()), low + 1e-6)
    if grid.any():
        low -= (high - low) * LIGHTENED / (1 - LIGHTENED)
    edges = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    panel.imshow(image, cmap="gray", vmin=low, vmax=high, extent=edges)
    strength = np.sqrt(np.abs(grid) / scale.limit).clip(max=1)
    panel.imshow(grid, alpha=0.85 * strength, **scale.shading)
    panel.set_aspect(height / rows * columns / width)
    panel.spines[:].set_color("lightgrey")
    panel.tick_params(length=0, labelsize=7)
    every = ceil(max(rows, columns) / MARKED_ROWS)
    panel.set(xticks=range(0, columns, every), yticks=range(0, rows, every))
    if every > 1:
        return
    for (row, column), score in np.ndenumerate(grid):
        if scale.has_signs and abs(score) >= MARKED_SHARE * scale.limit:
            panel.text(column, row, "+" if score > 0 else "−", **MARK)


def score_grid(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    unit: str = "score",
    scale: Scale | None = None,
    caption: str = "",
) -> Figure:
    """Draw a coloured cell for each row and column, with its signed number unless it is close to 0.

    Args:
        values: `[rows, columns]`, such as contributions of layers and heads, or scores of generated and source words.
        rows, columns: their names, the first row on top.
        scale: by default the one that just holds the values.
        unit, caption: the label of the colour bar, and the text under the cells.

    Raises:
        ValueError: values that do not fit the names or are not finite.
    """
    grid = as_array(values)
    shape = (len(rows), len(columns))
    if grid.shape != shape or not np.isfinite(grid).all():
        raise ValueError(f"expected finite values [rows, columns] = {shape}, got {grid.shape}")
    scale = scale or Scale.of(grid)
    smallest = NUMBERED_SHARE * scale.limit
    numbers = [scale.number(value) if abs(value) >= smallest else "" for value in grid.flat]
    width = max(0.45 * len(columns) + 2.6, 6)  # inches
    figure, panel = _draw_cells((width, 0.3 * len(rows) + 1.9), grid, numbers, scale, unit)
    panel.set_xticks(
        range(len(columns)), [shortened(visible(name), 14) for name in columns], rotation=90, parse_math=False
    )
    panel.set_yticks(range(len(rows)), [shortened(name, 20) for name in rows], parse_math=False)
    panel.xaxis.tick_top()
    return finish(figure, caption)


def draw_words(listing: Listing, unit: str, scale: Scale, figure: Canvas | None = None) -> Canvas:
    """Texts in lines of `WORDS`, each word with its number in a cell of its colour; of a long text the parts around
    the strongest words."""
    cells: list[tuple[str, float]] = []
    for title, text in listing.by_text():
        cells += [("", np.nan)] * (-len(cells) % WORDS)  # the rest of the line of the text before
        cells += [(f"{title}:", 0)] * bool(title)
        numbered = text.numbered
        for index in _excerpt(text):
            if index is None:
                cells.append(("…", 0))
                continue
            score = text.scores[index].item()
            number = f"\n{scale.number(score)}" if index in numbered else ""
            cells.append((f"{visible(shortened(text.tokens[index], 14))}{number}", score))
    labels, values = zip(*cells, strict=True)
    lines = ceil(len(cells) / WORDS)
    grid = np.full((lines, WORDS), np.nan)
    grid.flat[: len(cells)] = values
    figure, panel = _draw_cells((10, 0.5 * lines + 1.4), grid, labels, scale, unit, figure)
    panel.set_axis_off()
    return figure


def _excerpt(listing: Listing) -> list[int | None]:
    """The words of a text that are drawn; None where some are left out."""
    if not listing.is_long:
        return list(listing.words)
    near = {index + offset for index in listing.numbered for offset in range(-AROUND, AROUND + 1)}
    drawn = [index if index in near else None for index in listing.words]
    return [index for index, _ in groupby(drawn)]


def _draw_cells(
    size: tuple[float, float],
    grid: np.ndarray,
    labels: Sequence[str],
    scale: Scale,
    unit: str,
    figure: Canvas | None = None,
) -> tuple[Any, Any]:
    """A figure and its panel with a coloured cell for each value of `[rows, columns]` that is not NaN, labels in the
    first ones."""
    figure = figure or Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    panel.imshow(grid, aspect="auto", **scale.shading)
    panel.tick_params(length=0, labelsize=8)
    for (row, column), label in zip(np.ndindex(grid.shape), labels, strict=False):
        color = text_color_on(scale.color(grid.item(row, column)))
        panel.text(column, row, label, fontsize=7, color=color, **CENTRED)
    scale.draw(figure, unit, ax=panel)
    return figure, panel


def finish(figure: Figure, caption: str, title: str = "") -> Figure:
    """The figure with its title and the paragraphs of its caption, broken into lines."""
    width = int(figure.bbox.width / figure.dpi * CAPTION_DENSITY)
    paragraphs = [textwrap.fill(paragraph, width) for paragraph in caption.splitlines()]
    figure.supxlabel("\n".join(paragraphs), fontsize=8, parse_math=False)
    if title:
        figure.suptitle(textwrap.fill(title, width), fontsize=9, parse_math=False)
    return figure
