"""Signed scores drawn over the input they belong to."""

from collections.abc import Sequence
from math import isqrt
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

MARKED_SHARE = 0.3  # a patch beyond this share of the largest score gets its sign printed


def image_heatmap(
    images: Tensor | np.ndarray,
    scores: Tensor | np.ndarray,
    *,
    titles: Sequence[str] | None = None,
    unit: str = "score",
    caption: str | None = None,
    path: str | Path | None = None,
    figure: Figure | SubFigure | None = None,
) -> Figure | SubFigure:
    """Draw each image in grey with its signed patch scores on top: red for +, blue for −, clear for 0.

    All panels share one colour scale, symmetrical around 0. Strong patches also carry a + or − sign, so
    the figure still reads when printed in grey.

    Args:
        images: `[batch, height, width]` or `[batch, channels, height, width]`.
        scores: `[batch, rows, columns]`, or `[batch, patches]` for a square grid of patches.
        titles: one per image.
        unit: what a score is, written beside the colour bar.
        caption: one line under the panels.
        path: where to save the figure; the ending chooses the format.
        figure: a figure (or a part of one) to draw into; by default a new one.

    Returns:
        The figure, which the caller may go on drawing into.
    """
    images, scores = _grey(images), _grid(scores)
    titles = [""] * len(images) if titles is None else list(titles)
    if not len(images) == len(scores) == len(titles):
        raise ValueError(
            f"expected one score grid and one title per image; "
            f"got {len(images)} images, {len(scores)} score grids, {len(titles)} titles"
        )
    if figure is None:
        figure = Figure(figsize=(1.6 * len(images) + 1.2, 2.3), layout="constrained")
    panels = figure.subplots(1, len(images), squeeze=False)[0]
    limit = float(np.abs(scores).max()) or 1.0
    for panel, image, grid, title in zip(panels, images, scores, titles, strict=True):
        overlay = _draw_panel(panel, image, grid, limit)
        panel.set_title(title, fontsize=9)
    bar = figure.colorbar(overlay, ax=panels, label=unit, ticks=[-limit, 0, limit], shrink=0.9)
    bar.set_ticklabels([f"−{limit:.2g}", "0", f"+{limit:.2g}"])
    if caption:
        figure.supxlabel(caption, fontsize=8)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _draw_panel(panel, image: np.ndarray, grid: np.ndarray, limit: float):
    height, width = image.shape
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_color("lightgrey")
    panel.imshow(image, cmap="gray")
    overlay = panel.imshow(grid, cmap="RdBu_r", vmin=-limit, vmax=limit, extent=extent)
    overlay.set_alpha(0.85 * np.sqrt(np.abs(grid) / limit))  # 0 shows the image, not the map's white centre
    rows, columns = grid.shape
    for row, column in np.argwhere(np.abs(grid) >= MARKED_SHARE * limit):
        x, y = (column + 0.5) * width / columns - 0.5, (row + 0.5) * height / rows - 0.5
        sign = "+" if grid[row, column] > 0 else "−"
        disc = {"boxstyle": "circle,pad=0.05", "facecolor": "white", "alpha": 0.6, "linewidth": 0}
        panel.text(x, y, sign, ha="center", va="center", fontsize=9, fontweight="bold", bbox=disc)
    return overlay


def _grey(images: Tensor | np.ndarray) -> np.ndarray:
    images = _array(images)
    if images.ndim == 4:
        images = images.mean(axis=1)
    if images.ndim != 3 or not len(images):
        raise ValueError(
            f"expected images [batch, height, width] or [batch, channels, height, width], got {images.shape}"
        )
    return images


def _grid(scores: Tensor | np.ndarray) -> np.ndarray:
    scores = _array(scores)
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


def _array(values: Tensor | np.ndarray) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=float)
