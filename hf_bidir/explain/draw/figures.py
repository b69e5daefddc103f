"""Signed scores as figures: over images, and as grids of rows and columns. Red for +, blue for −, white for 0."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor

from hf_bidir.common.files import save_figure
from hf_bidir.common.images import open_image
from hf_bidir.explain.inputs.text import shortened, signed

COLORS = colormaps["RdBu_r"]
STEPS = 256  # colours in a colour bar
NEGLIGIBLE = 1e-3  # share of the limit below which a value is written as ≈0
NUMBERED_SHARE = 0.05  # share of the limit from which a cell of a grid carries its number
MARKED_SHARE = 0.3  # share of the limit from which a patch carries its sign
MARKED_ROWS = 16  # rows of patches up to which they are numbered and marked
LIGHTENED = 0.6  # brightness of black under colours, which would be dark over black
WIDE, WORDS = 6, 10  # most images, or words, in a row
CAPTION_DENSITY = 15  # characters per inch of a caption
LARGEST_SIDE = 448  # pixels of the longer side of a photograph
CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}
DISC = {"boxstyle": "circle,pad=0.05", "facecolor": "white", "alpha": 0.6, "linewidth": 0}
Array = Tensor | np.ndarray | Sequence[Any]


def as_array(values: Array) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=float)


@dataclass(frozen=True)
class Scale:
    """Colour scale from -limit to +limit; without negative values only its half above 0 is shown, without signs."""

    limit: float
    has_signs: bool

    @classmethod
    def of(cls, values: Array, has_signs: bool = False, limit: float | None = None) -> "Scale":
        """The scale that just holds these values; `has_signs` and `limit` are those of others drawn beside them."""
        values = as_array(values)
        limit = limit or float(np.abs(values).max(initial=0)) or 1.0
        return cls(limit, has_signs or bool((values < 0).any()))

    @property
    def ends(self) -> tuple[float, float]:
        return (-self.limit if self.has_signs else 0.0, self.limit)

    def sentence(self, subject: str) -> str:
        """A clause that states the scale, such as "all rows are on one colour scale, −0.5 to +0.5"."""
        return f"{subject} are on one colour scale, {self.number(self.ends[0])} to {self.number(self.ends[1])}"

    def number(self, value: float) -> str:
        """The value with two significant digits, unless it is too close to 0 for this scale."""
        if 0 < abs(value) < NEGLIGIBLE * self.limit:
            return "≈0"
        return signed(value) if self.has_signs else f"{value:.2g}"

    def color(self, value: float) -> tuple[float, float, float, float]:
        return COLORS(0.5 + 0.5 * value / self.limit)

    def steps(self, count: int = STEPS) -> list[tuple[float, float, float, float]]:
        """Evenly spaced colours from one end of the scale to the other."""
        return [self.color(value) for value in np.linspace(*self.ends, count)]

    def bar(self, figure: Figure | SubFigure, unit: str, **placing: Any) -> Colorbar:
        """Draw a colour bar labelled with the unit."""
        mappable = ScalarMappable(Normalize(*self.ends), ListedColormap(self.steps()))
        ticks = sorted({*self.ends, 0.0})
        bar = figure.colorbar(mappable, ticks=ticks, **placing)
        bar.set_label(unit, parse_math=False)
        bar.set_ticklabels([self.number(tick) for tick in ticks])
        return bar


def text_color_on(color: tuple[float, ...]) -> str:
    """Black or white, whichever contrasts more with the background colour."""
    red, green, blue = color[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def image_heatmap(
    images: Array | Image.Image,
    scores: Array,
    *,
    titles: Sequence[str] | None = None,
    unit: str = "score",
    caption: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw images in grey with the signed scores of their patches on top, clear for 0, on one colour scale.

    Patches of large magnitude carry a + or − sign where there are few, so that the figure can be read in grey. Rows and
    columns are numbered from 0.

    Args:
        images: `[batch, height, width]` or `[batch, channels, height, width]`, or a photograph under all scores.
        scores: `[batch, rows, columns]`, or `[batch, patches]` for a square grid of patches.
        titles, unit, caption: one title per image, the label of the colour bar, and the text under the panels.
        path: file to save to; the suffix sets the format.

    Raises:
        ValueError: scores that do not fit the images or are not finite.
    """
    scores = _grids(scores)
    across = min(len(scores), WIDE)
    side = 1.6 if across > 3 else 2.8  # inches
    size = (side * across + 1.2, side * -(-len(scores) // across) + 1.1)
    figure = Figure(figsize=size, layout="constrained")
    draw_images(figure, images, scores, titles=titles, scale=Scale.of(scores), unit=unit)
    return finish(figure, caption, path)


def draw_images(
    figure: Figure | SubFigure,
    images: Array | Image.Image,
    scores: np.ndarray,
    *,
    titles: Sequence[str] | None = None,
    scale: Scale,
    unit: str,
) -> None:
    """Draw a panel for each `[rows, columns]` of the scores, at most `WIDE` in a row, and a colour bar."""
    pictures = _grey(images, len(scores))
    titles = [""] * len(scores) if titles is None else titles
    if not len(pictures) == len(scores) == len(titles):
        raise ValueError(
            f"expected one score grid and one title per image; "
            f"got {len(pictures)} images, {len(scores)} score grids, {len(titles)} titles"
        )
    across = min(len(scores), WIDE)
    panels = figure.subplots(-(-len(scores) // across), across, squeeze=False).ravel()
    for panel in panels[len(scores) :]:
        panel.set_axis_off()
    for panel, image, grid, title in zip(panels, pictures, scores, titles, strict=False):
        overlay(panel, image, grid, scale)
        panel.set_title(title, fontsize=9, parse_math=False)
    scale.bar(figure, unit, ax=list(panels), shrink=0.9)


def overlay(panel: Any, image: np.ndarray, grid: np.ndarray, scale: Scale) -> None:
    """A grey image, lightened, under colours that are clear at 0; without any score, the image as it is."""
    (height, width), (rows, columns) = image.shape, grid.shape
    low, high = float(image.min()), max(float(image.max()), float(image.min()) + 1e-6)
    darkest = low - (high - low) * LIGHTENED / (1 - LIGHTENED) if grid.any() else low
    panel.imshow(image, cmap="gray", vmin=darkest, vmax=high)
    strength = np.sqrt(np.abs(grid) / scale.limit).clip(max=1)
    edges = (-0.5, width - 0.5, height - 0.5, -0.5)
    panel.imshow(grid, cmap=COLORS, vmin=-scale.limit, vmax=scale.limit, extent=edges, alpha=0.85 * strength)
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_color("lightgrey")
    if rows > MARKED_ROWS:
        return
    across, down = ((np.arange(n) + 0.5) * side / n - 0.5 for n, side in ((columns, width), (rows, height)))
    panel.set_xticks(across, range(columns), fontsize=7)
    panel.set_yticks(down, range(rows), fontsize=7)
    panel.tick_params(length=0)
    for row, column, sign in _marks(grid, scale):
        panel.text(across[column], down[row], sign, fontsize=9, fontweight="bold", bbox=DISC, **CENTRED)


def _marks(grid: np.ndarray, scale: Scale) -> Iterator[tuple[int, int, str]]:
    """Row, column and sign of each cell of large magnitude, if the scale has signs."""
    for row, column in np.argwhere((np.abs(grid) >= MARKED_SHARE * scale.limit) & scale.has_signs):
        yield row, column, "+" if grid[row, column] > 0 else "−"


def _grey(images: Array | Image.Image, count: int) -> Sequence[np.ndarray]:
    if isinstance(images, Image.Image):
        picture = open_image(images)
        picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
        return [np.asarray(picture.convert("L"), dtype=float)] * count
    images = as_array(images)
    grey = images.mean(axis=1) if images.ndim == 4 else images
    if grey.ndim != 3 or not len(grey):
        raise ValueError(
            f"expected images [batch, height, width] or [batch, channels, height, width], got {images.shape}"
        )
    return grey


def _grids(scores: Array) -> np.ndarray:
    scores = as_array(scores)
    if scores.ndim == 2 and isqrt(scores.shape[1]) ** 2 == scores.shape[1]:
        side = isqrt(scores.shape[1])
        scores = scores.reshape(-1, side, side)
    if scores.ndim != 3 or not len(scores):
        raise ValueError(
            f"expected scores [batch, rows, columns] or [batch, patches] with a square number of patches "
            f"(leave the class token out), got {scores.shape}"
        )
    if not np.isfinite(scores).all():
        raise ValueError("expected finite scores, got NaN or infinity")
    return scores


def score_grid(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    unit: str = "score",
    caption: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw a coloured cell for each row and column, with its signed number unless it is close to 0.

    Args:
        values: `[rows, columns]`, such as contributions of layers and heads, or scores of generated and source words.
        rows, columns: their names, the first row on top.
        unit, caption, path: as in `image_heatmap`.

    Raises:
        ValueError: values that do not fit the names or are not finite.
    """
    return draw_grid(as_array(values), rows, columns, Scale.of(values), unit=unit, caption=caption, path=path)


def draw_grid(
    grid: np.ndarray, rows: Sequence[str], columns: Sequence[str], scale: Scale, *, unit: str, **ending: Any
) -> Figure:
    """The figure of `score_grid` on a given colour scale; `ending` is the caption and the path."""
    if grid.shape != (len(rows), len(columns)) or not grid.size or not np.isfinite(grid).all():
        raise ValueError(f"expected finite values [rows, columns] = {(len(rows), len(columns))}, got {grid.shape}")
    size = (max(0.45 * len(columns) + 2.6, 6), 0.3 * len(rows) + 1.9)  # inches
    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    panel.imshow(grid, cmap=COLORS, vmin=-scale.limit, vmax=scale.limit, aspect="auto")
    panel.set_xticks(range(len(columns)), [shortened(name, 14) for name in columns], rotation=90, parse_math=False)
    panel.set_yticks(range(len(rows)), [shortened(name, 20) for name in rows], parse_math=False)
    panel.tick_params(length=0, labelsize=8)
    panel.xaxis.tick_top()
    for (row, column), value in np.ndenumerate(grid):
        if abs(value) >= NUMBERED_SHARE * scale.limit:
            color = text_color_on(scale.color(value))
            panel.text(column, row, scale.number(value), fontsize=6, color=color, **CENTRED)
    scale.bar(figure, unit, ax=panel)
    return finish(figure, **ending)


def draw_words(words: Sequence[str], scores: np.ndarray, scale: Scale, *, unit: str, caption: str) -> Figure:
    """A text in lines of `WORDS`, each word on its colour, with its number below."""
    lines = -(-len(words) // WORDS)
    figure = Figure(figsize=(10, 0.5 * lines + 1.4), layout="constrained")
    panel = figure.subplots()
    panel.set(xlim=(0, WORDS), ylim=(lines, 0))
    panel.set_axis_off()
    for index, (word, score) in enumerate(zip(words, scores, strict=True)):
        line, place = divmod(index, WORDS)
        color, middle = scale.color(score), place + 0.48
        panel.add_patch(Rectangle((place, line + 0.1), 0.96, 0.55, facecolor=color, edgecolor="lightgrey"))
        text = {"color": text_color_on(color), "fontsize": 8, "parse_math": False} | CENTRED
        panel.text(middle, line + 0.37, shortened(word, 14), **text)
        panel.text(middle, line + 0.8, scale.number(score), fontsize=6, **CENTRED)
    scale.bar(figure, unit, ax=panel)
    return finish(figure, caption)


def finish(figure: Figure, caption: str | None = None, path: str | Path | None = None) -> Figure:
    """The figure with its caption, broken into lines, saved if there is a path."""
    if caption:
        width = int(figure.bbox.width / figure.dpi * CAPTION_DENSITY)
        figure.supxlabel(textwrap.fill(caption, width), fontsize=8, parse_math=False)
    if path is not None:
        save_figure(figure, path, dpi=120)
    return figure
