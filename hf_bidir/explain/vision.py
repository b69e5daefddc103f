"""Maps of attention and contributions over a photograph: one panel per method, or a grid of layers and heads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.explain.checkpoint import Example
from hf_bidir.explain.contributions import contributions, value_weighted
from hf_bidir.explain.image_inputs import read_image
from hf_bidir.explain.methods import METHODS, check_method, default_method, scores_by_default
from hf_bidir.explain.photo import photo_heatmap
from hf_bidir.explain.prediction import predictions
from hf_bidir.explain.readout import Target
from hf_bidir.explain.running import check_exists, prepared_inputs, record_coefficients

BY_HEAD = ("attention", "signed-attention", "values", "contributions")


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
        model: a signed vision transformer with patches, such as ViT, DeiT, DINOv2 or the vision model of CLIP.
        processor: its image processor.
        image: a photograph of any size.
        methods: names of `METHODS`; by default the attention and the default method. Each panel has its own scale.
        target: as in `token_scores`.
        size: use the whole photograph with this shorter side, as in `read_image`.
        path: file to save to; the suffix sets the format.
    """
    methods = ("attention", None) if methods is None else methods
    chosen = [methods] if isinstance(methods, str) else list(methods)
    if not chosen:
        raise ValueError(f"expected at least one method; choose from {', '.join(METHODS)}.")
    for name in chosen:
        check_method(name or default_method(model))
    example = read_image(model, processor, image, size=size)
    named = {"target": target, "position": None, "layer": None, "head": None}
    found = (scores_by_default(model, example.inputs, name, **named) for name in chosen)
    scores = {name: values[0] for values, name, _ in found}
    about = predictions(model, processor, example.inputs, target, None)[0].explained
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
        method: "attention", "signed-attention", "values" or "contributions".
        layers, heads: indices; by default all.
        query: row and column of the patch that attends, for the first three methods; by default the first token, which
            is the class token where there is one.
        model, processor, image, target, size, path: as in `vision_maps`.
    """
    if query is not None and method == "contributions":
        raise ValueError("contributions are summed over queries; leave out query, or choose another method.")
    if method not in BY_HEAD:
        raise ValueError(f"expected a method with scores by head, {', '.join(BY_HEAD)}; got {method!r}.")
    example = read_image(model, processor, image, size=size)
    found = _by_head(model, example, method, target, _place(example, query))  # [layers, heads, tokens]
    rows, columns = (
        list(range(count)) if given is None else list(given)
        for given, count in zip((layers, heads), found.shape[:2], strict=True)
    )
    if not rows or not columns:
        raise ValueError(f"expected at least one layer and one head, got layers {rows} and heads {columns}.")
    for name, some, count in (("layer", rows, len(found)), ("head", columns, found.shape[1])):
        for index in some:
            check_exists(name, index, count)
    maps = {f"layer {layer}, head {head}": _grid(example, found[layer, head]) for layer in rows for head in columns}
    explains = METHODS[method].explains_output
    caption = predictions(model, processor, example.inputs, target, None)[0].explained if explains else ""
    what = METHODS[method].unit + ("" if query is None else f" of the patch in row {query[0]}, column {query[1]}")
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


def _by_head(model: PreTrainedModel, example: Example, method: str, target: Target, query: int) -> Tensor:
    """Scores `[layers, heads, tokens]` of one image."""
    inputs = prepared_inputs(model, example.inputs)
    if method == "contributions":
        return contributions(model, inputs, target)[0]
    if method == "values":
        return torch.stack([layer[0, :, query] for layer in value_weighted(model, inputs)])
    with torch.no_grad():
        layers = record_coefficients(model, inputs)[1]
    rows = torch.stack([layer[0, :, query] for layer in layers]).float()
    return rows if method == "signed-attention" else rows.abs()


def _grid(example: Example, scores: Tensor) -> Tensor:
    """The patches of `[tokens]` as `[rows, columns]`."""
    return scores[~torch.tensor(example.special)].unflatten(0, example.grid)


def _special(example: Example, scores: Tensor) -> str:
    """The scores of class token and registers, in words."""
    named = [
        f"{token} {score:.2g}"
        for token, special, score in zip(example.tokens, example.special, scores.tolist(), strict=True)
        if special
    ]
    return ", ".join(named) or "nothing"
