"""Observe or change the coefficients, projections and layers of a running signed model.

A change acts on the calls of the thread that makes it, after those of surrounding contexts.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_bidir.kernels.interventions import Interventions, graphs, intervening
from hf_bidir.modeling.eager_attention import grouped_matmul
from hf_bidir.modeling.signed_layers import signed_layers

from .examples import image_size
from .linear_maps import gradients_through
from .module_hooks import evaluation_mode, hooked

INTERPOLATE = "interpolate_pos_encoding"
NEGLIGIBLE = 1e-3  # magnitude of a coefficient


def edited_coefficients(model: nn.Module, edit: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
    """Inside the context, replace the coefficients of every layer, `[batch, heads, queries, keys]`, by
    `edit(coefficients)`, which is called once per call of a layer, in order."""
    return _intervening(model, Interventions(edits=(edit,)))


def edited_projections(model: nn.Module, edit: Callable[..., tuple[Tensor, ...]]) -> AbstractContextManager[None]:
    """Inside the context, every layer attends with `edit(query, key, value)`, of the same shapes.

    Query is `[batch, heads, queries, head_dim]`, key and value `[batch, key heads, keys, head_dim]`. Attention with its
    own scores is not edited.
    """
    return _intervening(model, Interventions(projections=(edit,)))


def observed_layers(
    model: nn.Module,
    observe: Callable[[nn.Module, Tensor, Tensor, Tensor], None],
) -> AbstractContextManager[None]:
    """Inside the context, call `observe(layer, key, value, context)` after every call of a signed layer.

    Key and value are `[batch, key heads, keys, head_dim]`, the context `[batch, queries, heads, head_dim]`.
    """
    return _intervening(model, Interventions(observers=(observe,)))


def without_negatives(model: nn.Module) -> AbstractContextManager[None]:
    """Context in which negative coefficients are 0; the others are not rescaled."""
    return edited_coefficients(model, lambda coefficients: coefficients.clamp_min(0))


@torch.inference_mode()
def negative_share(
    model: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    threshold: float = NEGLIGIBLE,
) -> float | None:
    """The share of negative coefficients among those of magnitude over `threshold`, in [0, 1]; None without any.

    All layers, heads and queries count, except queries that `attention_mask` masks, or in a decoder after an encoder
    `decoder_attention_mask`.
    """
    counts = {"positive": 0, "negative": 0}

    def count(mask: str, coefficients: Tensor) -> Tensor:
        keep = batch.get(mask) if between_tokens else None
        rows = at_tokens(coefficients.movedim(2, 1), keep)
        counts["positive"] += int((rows > threshold).sum())
        counts["negative"] += int((rows < -threshold).sum())
        return coefficients

    check_attends(model)
    between_tokens = getattr(model, "attends_between_tokens", True)
    decoder = signed_layers(model.get_decoder()) if model.config.is_encoder_decoder else []
    encoder = [layer for layer in signed_layers(model) if layer not in decoder]
    with (
        intervening(model, encoder, Interventions(edits=(partial(count, "attention_mask"),))),
        intervening(model, decoder, Interventions(edits=(partial(count, "decoder_attention_mask"),))),
    ):
        for batch in batches:
            model(**batch)
    counted = sum(counts.values())
    return counts["negative"] / counted if counted else None


def signed_parts(model: nn.Module, record: Callable[[Tensor, Tensor], None]) -> AbstractContextManager[None]:
    """Inside the context, call `record(positive, negative)` after every call of a signed layer.

    The two parts of the context come from the positive and from the negative coefficients; each is `[batch, queries,
    heads, head_dim]`, and their sum is the context.
    """
    current: list[Tensor] = []

    def keep(coefficients: Tensor) -> Tensor:
        current[:] = [coefficients]
        return coefficients

    def observe(layer: nn.Module, key: Tensor, value: Tensor, context: Tensor) -> None:
        positive = grouped_matmul(current[0].clamp_min(0), value).transpose(1, 2)
        record(positive, context - positive)

    return _intervening(model, Interventions(edits=(keep,), observers=(observe,)))


def at_tokens(rows: Tensor, keep: Tensor | None) -> Tensor:
    """The rows `[tokens, ...]` of `[batch, queries, ...]` that are not padding."""
    if keep is not None and keep.shape == rows.shape[:2]:
        return rows[keep.bool()]
    return rows.flatten(0, 1)


def _intervening(model: nn.Module, interventions: Interventions) -> AbstractContextManager[None]:
    """Change all layers of the model."""
    check_attends(model)
    return intervening(model, signed_layers(model), interventions)


def check_attends(model: nn.Module) -> None:
    """Raise ValueError unless the model has signed layers, with coefficients that can be observed."""
    if not signed_layers(model):
        raise ValueError(
            f"expected a signed model with attention, got {type(model).__name__}; hf_bidir.signed(model, "
            "negative_mass=0.0) makes it one in place, with the same outputs."
        )


def _interpolating(model: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """The arguments of a call, with interpolation for an unusual size; ValueError if the usual one is not square."""
    pixels = kwargs.get("pixel_values", args[0] if args else None)
    if pixels is None:
        return None
    height, width = image_size(getattr(model.config, "vision_config", model.config))
    if pixels.shape[-2:] == (height, width):
        return None
    if height != width:  # their positions would be taken for those of a square
        raise ValueError(
            f"expected images of {height} x {width} pixels, got {pixels.shape[-2]} x {pixels.shape[-1]}: transformers "
            f"interpolates the positions of {type(model).__name__} for square images alone; leave out size (--size)."
        )
    return args, {INTERPOLATE: True, **kwargs}


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the context, and no compiled graphs, which ignore hooks; restores all modes afterwards.

    Inside, a ViT, DeiT or CLIP interpolates its position embeddings for images of another size than the config's, for
    which it raises an error otherwise; models such as DINOv2 need no help. Gradients flow through quantised weights.
    """
    interpolates = INTERPOLATE in inspect.signature(type(model).forward).parameters
    sized = hooked([model] if interpolates else [], before=_interpolating)
    with evaluation_mode(model), graphs.stopped(), gradients_through(model), sized:
        yield
