"""Smooth maps of scores over a photograph: any scores, a panel per method, or a grid of layers and heads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.common.images import open_image
from hf_bidir.explain.draw.colors import Scale, as_array
from hf_bidir.explain.draw.figures import finish, overlay
from hf_bidir.explain.draw.fonts import Figure
from hf_bidir.explain.inputs.image import read_image
from hf_bidir.explain.inputs.text import Example
from hf_bidir.explain.methods import METHODS, check_method, default_method, scores_by_default
from hf_bidir.explain.methods.contributions import contributions, value_weighted
from hf_bidir.explain.record import Record, check_exists
from hf_bidir.explain.target import Target, predictions

LARGEST_SIDE = 448  # pixels of a panel's longer side
WIDE = 4  # most panels in a row by default
BY_HEAD = {name: METHODS[name].unit for name in ("attention", "values", "contributions")} | {"coefficients": "a"}


def photo_heatmap(
    photo: Image.Image | None,
    maps: Mapping[str, Tensor | np.ndarray],
    *,
    units: str | Mapping[str, str] = "score",
    columns: int | None = None,
    common_scale: bool = False,
    with_photo: bool = False,
    smooth: bool = True,
    limit: float | None = None,
    caption: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw scores over a photograph in grey: red for +, blue for −, clear for 0.

    Args:
        maps: scores `[rows, columns]` of its patches, by title.
        units: label of the colour bars, or one by title.
        columns: panels in a row; by default all in one row, of at most four.
        common_scale: one colour scale for all panels, with a single bar.
        with_photo: show the photograph in colour first.
        smooth: bicubic interpolation between patches; otherwise each patch has one colour.
        limit: the magnitude of the strongest colour; by default the largest score of a panel, or of all.
        caption, path: as in `image_heatmap`; "pdf" for a paper.

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
    whole = Scale.of(np.concatenate([grid.ravel() for grid in grids.values()]), limit=limit)
    grey = np.asarray(picture.convert("L"))
    for panel, (title, grid) in zip(panels[int(with_photo) :], grids.items(), strict=False):
        scale = whole if common_scale else Scale.of(grid, limit=limit)
        overlay(panel, grey, upsampled(grid, grey.shape, smooth), scale)
        panel.set_title(title, fontsize=9 if (columns or 0) <= WIDE else 6, parse_math=False)
        if not common_scale:
            scale.bar(figure, units if isinstance(units, str) else units[title], ax=panel, shrink=0.7)
    if common_scale:
        label = units if isinstance(units, str) else next(iter(units.values()))
        whole.bar(figure, label, ax=list(panels), shrink=0.5)
    return finish(figure, caption, path, dpi=200)


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


def upsampled(grid: np.ndarray, shape: tuple[int, ...], smooth: bool = True) -> np.ndarray:
    """Scores of patches `[rows, columns]` as scores of pixels; interpolation does not exceed the largest magnitude."""
    mode = "bicubic" if smooth else "nearest"
    found = torch.nn.functional.interpolate(torch.from_numpy(grid)[None, None], size=tuple(shape[:2]), mode=mode)[0, 0]
    return found.clamp(float(grid.min()), float(grid.max())).numpy()


def vision_maps(
    model: PreTrainedModel,
    processor: Any,
    image: str | Path | Image.Image,
    methods: str | Sequence[str] | None = None,
    *,
    target: Target = None,
    size: int | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw the scores of one or several methods over a photograph.

        vision_maps(model, processor, "cat.jpg", ["attention", "contributions"], size=448, path="cat.pdf")

    Args:
        model, processor: a signed vision transformer with patches, such as ViT, DeiT, DINOv2 or the vision model of
            CLIP, and its image processor.
        methods: names of `METHODS`; by default the attention and the default method. Each panel has its own scale.
        target, size, path: as in `token_scores`, `read_image` and `image_heatmap`.
    """
    methods = ("attention", None) if methods is None else methods
    chosen = [methods] if isinstance(methods, str) else list(methods)
    if not chosen:
        raise ValueError(f"expected at least one method; choose from {', '.join(METHODS)}.")
    for name in chosen:
        check_method(name or default_method(model))
    example = read_image(model, processor, image, size=size)
    record = Record(model, example.inputs, kept=True)
    about = predictions(model, processor, [record], target, None)[0].explained
    found = (scores_by_default(model, record, name, target=target) for name in chosen)
    scores = {name: values[0] for values, name, _ in found}
    hidden = "; ".join(f"{name}: {_special(example, values)}" for name, values in scores.items())
    return photo_heatmap(
        example.photo,
        {name: _grid(example, values) for name, values in scores.items()},
        units={name: METHODS[name].unit for name in scores},
        caption=f"{about} Not drawn: {hidden}.",
        with_photo=True,
        path=path,
    )


def head_maps(
    model: PreTrainedModel,
    processor: Any,
    image: str | Path | Image.Image,
    method: str = "attention",
    *,
    target: Target = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    query: tuple[int, int] | None = None,
    size: int | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw a grid of maps over a photograph, a row for each layer and a column for each head, on one colour scale.

    Args:
        method: "coefficients" a, "attention" |a|, "values" or "contributions".
        layers, heads: indices; by default all.
        query: row and column of the patch that attends, except for contributions; by default the first token, which
            is the class token where there is one.
        model, processor, image, target, size, path: as in `vision_maps`.
    """
    if query is not None and method == "contributions":
        raise ValueError("contributions are summed over queries; leave out query, or choose another method.")
    if method not in BY_HEAD:
        raise ValueError(f"expected a method with scores by head, {', '.join(BY_HEAD)}; got {method!r}.")
    example = read_image(model, processor, image, size=size)
    record = Record(model, example.inputs, kept=True)
    found = _by_head(record, method, target, _place(example, query))  # [layers, heads, tokens]
    rows, columns = (
        list(range(count) if given is None else given)
        for given, count in zip((layers, heads), found.shape[:2], strict=True)
    )
    if not rows or not columns:
        raise ValueError(f"expected at least one layer and one head, got layers {rows} and heads {columns}.")
    for index in rows:
        check_exists("layer", index, len(found))
    for index in columns:
        check_exists("head", index, found.shape[1])
    maps = {f"layer {layer}, head {head}": _grid(example, found[layer, head]) for layer in rows for head in columns}
    explains = method == "contributions"
    caption = predictions(model, processor, [record], target, None)[0].explained if explains else ""
    what = BY_HEAD[method] + ("" if query is None else f" of the patch in row {query[0]}, column {query[1]}")
    return photo_heatmap(
        example.photo, maps, units=what, caption=caption, columns=len(columns), common_scale=True, path=path
    )


def _place(example: Example, query: tuple[int, int] | None) -> int:
    if query is None:
        return 0
    rows, columns = example.grid or (0, 0)
    if not (0 <= query[0] < rows and 0 <= query[1] < columns):
        raise ValueError(f"expected a patch in rows 0 to {rows - 1} and columns 0 to {columns - 1}; got {query}.")
    return sum(example.special) + query[0] * columns + query[1]


def _by_head(record: Record, method: str, target: Target, query: int) -> Tensor:
    """Scores `[layers, heads, tokens]` of one image."""
    if method == "contributions":
        return contributions(record.model, record, target)[0]
    if method == "values":
        return torch.stack([layer[0, :, query] for layer in value_weighted(record.model, record)])
    with torch.no_grad():
        rows = torch.stack([layer[0, :, query] for layer in record.coefficients]).float()
    return rows if method == "coefficients" else rows.abs()


def _grid(example: Example, scores: Tensor) -> Tensor:
    """The patches of `[tokens]` as `[rows, columns]`."""
    return scores[~torch.tensor(example.special)].unflatten(0, example.grid)


def _special(example: Example, scores: Tensor) -> str:
    """The scores of class token and registers, in words."""
    found = zip(example.tokens, example.special, scores.tolist(), strict=True)
    return ", ".join(f"{token} {score:.2g}" for token, special, score in found if special) or "nothing"
