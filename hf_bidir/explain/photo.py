"""Smooth maps of scores over a photograph."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hf_bidir.common.files import save_figure
from hf_bidir.common.images import open_image
from hf_bidir.explain.colors import COLORS, Scale, as_array
from hf_bidir.explain.fonts import Figure

LARGEST_SIDE = 448  # pixels of a panel's longer side
OPACITY = 0.85
WIDE = 4  # most panels in a row by default


def photo_heatmap(
    photo: Image.Image | None,
    maps: Mapping[str, Tensor | np.ndarray],
    *,
    units: str | Mapping[str, str] = "score",
    columns: int | None = None,
    common_scale: bool = False,
    with_photo: bool = False,
    smooth: bool = True,
    caption: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw scores over a photograph in grey: red for +, blue for −, clear for 0.

    Args:
        photo: the image that the scores belong to.
        maps: scores `[rows, columns]` of its patches, by title.
        units: label of the colour bars, or one by title.
        columns: panels in a row; by default all in one row, of at most four.
        common_scale: one colour scale for all panels, with a single bar.
        with_photo: show the photograph in colour first.
        smooth: bicubic interpolation between patches; otherwise each patch has one colour.
        caption: text under the panels.
        path: file to save to; the suffix sets the format, "pdf" for a paper.

    Raises:
        ValueError: no map, or scores that are not finite.
    """
    grids = {title: as_array(grid) for title, grid in maps.items()}
    if not grids or photo is None:
        raise ValueError("expected a photograph and at least one map of scores; got none.")
    for title, grid in grids.items():
        if grid.ndim != 2 or not np.isfinite(grid).all():
            raise ValueError(f"expected finite scores [rows, columns] for {title}, got the shape {grid.shape}.")
    picture = open_image(photo)
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    figure, panels = _panels(picture, len(grids) + with_photo, columns)
    if with_photo:
        panels[0].imshow(picture)
        panels[0].set_title("photograph", fontsize=9)
    whole = Scale.of(np.concatenate([grid.ravel() for grid in grids.values()]))
    grey = np.asarray(picture.convert("L"))
    for panel, (title, grid) in zip(panels[int(with_photo) :], grids.items(), strict=False):
        scale = whole if common_scale else Scale.of(grid)
        _overlay(panel, grey, grid, scale, smooth)
        panel.set_title(title, fontsize=9 if (columns or 0) <= WIDE else 6, parse_math=False)
        if not common_scale:
            scale.bar(figure, units if isinstance(units, str) else units[title], ax=panel, shrink=0.7)
    if common_scale:
        label = units if isinstance(units, str) else next(iter(units.values()))
        whole.bar(figure, label, ax=list(panels), shrink=0.5)
    if caption:
        width = figure.get_size_inches()[0]
        figure.supxlabel(textwrap.fill(caption, int(15 * width)), fontsize=8, parse_math=False)
    if path is not None:
        save_figure(figure, path, dpi=200)
    return figure


def _panels(picture: Image.Image, count: int, columns: int | None) -> tuple[Figure, Any]:
    """A figure with at least `count` empty panels of the shape of the picture."""
    across = columns or min(WIDE, count)
    down, side = -(-count // across), 2.6 if across <= WIDE else 1.4  # inches
    size = (side * across + 0.3 * across, (side * picture.height / picture.width + 0.45) * down + 0.6)
    figure = Figure(figsize=size, layout="compressed")
    panels: Any = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels:
        panel.set_axis_off()
    return figure, panels


def _overlay(panel: Any, grey: np.ndarray, grid: np.ndarray, scale: Scale, smooth: bool) -> None:
    values = upsampled(grid, grey.shape, smooth)
    panel.imshow(grey, cmap="gray", vmin=0, vmax=255)
    overlay = panel.imshow(values, cmap=COLORS, vmin=-scale.limit, vmax=scale.limit)
    overlay.set_alpha(OPACITY * np.sqrt(np.abs(values) / scale.limit).clip(max=1))


def upsampled(grid: np.ndarray, shape: tuple[int, ...], smooth: bool = True) -> np.ndarray:
    """Scores of patches `[rows, columns]` as scores of pixels; interpolation does not exceed the largest magnitude."""
    values = torch.from_numpy(grid)[None, None]
    options: dict[str, Any] = {"mode": "bicubic", "align_corners": False} if smooth else {"mode": "nearest"}
    found = torch.nn.functional.interpolate(values, size=tuple(shape[:2]), **options)[0, 0]
    return found.clamp(float(grid.min()), float(grid.max())).numpy()
