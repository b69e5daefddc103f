"""Observe or change the coefficients, projections and layers of a running signed model.

A change acts on the calls of the thread that makes it, after those of surrounding contexts.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_bidir.checkpoints.linear_maps import gradients_through
from hf_bidir.checkpoints.module_hooks import evaluation_mode, hooked
from hf_bidir.kernels.interventions import Interventions, graphs, intervening
from hf_bidir.modeling.eager_attention import grouped_matmul
from hf_bidir.modeling.signed_layers import signed_layers

INTERPOLATE = "interpolate_pos_encoding"
MASK, DECODER_MASK = "attention_mask", "decoder_attention_mask"
NEGLIGIBLE = 1e-3  # magnitude of a coefficient


def edited_coefficients(model: nn.Module, edit: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
    """Inside the context, replace the coefficients of every layer, `[batch, heads, queries, keys]`, by
    `edit(coefficients)`, which is called once per call of a layer, in order."""
    return _intervening(model, Interventions(edits=(edit,)))


def edited_projections(
    model: nn.Module, edit: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
) -> AbstractContextManager[None]:
    """Inside the context, every layer attends with `edit(query, key, value)`, of the same shapes.

    Query is `[batch, heads, queries, head_dim]`, key and value `[batch, key heads, keys, head_dim]`. Attention with its
    own scores is not edited.
    """
    return _intervening(model, Interventions(projections=(edit,)))


def observed_layers(
    model: nn.Module, observe: Callable[[nn.Module, Tensor, Tensor, Tensor], None]
) -> AbstractContextManager[None]:
    """Inside the context, call `observe(layer, key, value, context)` after every call of a signed layer.

    Key and value are `[batch, key heads, keys, head_dim]`, the context `[batch, queries, heads, head_dim]`.
    """
    return _intervening(model, Interventions(observers=(observe,)))


def without_negatives(model: nn.Module) -> AbstractContextManager[None]:
    """Context in which negative coefficients are 0; the others are not rescaled."""
    return edited_coefficients(model, lambda coefficients: coefficients.clamp_min(0))


@dataclass
class SignCount:
    """Coefficients counted by `counted_signs`."""

    masks: Mapping[str, Any] = field(default_factory=dict)  # arguments of the running call; without masks, all count
    counted: int = 0
    negative: int = 0

    @property
    def share(self) -> float | None:
        """The share of negative coefficients, in [0, 1]; None if none was counted."""
        return self.negative / self.counted if self.counted else None


@contextmanager
def counted_signs(model: nn.Module, threshold: float = NEGLIGIBLE) -> Iterator[SignCount]:
    """Inside the context, count the coefficients of magnitude over `threshold`, of all layers, heads and queries.

    Set `count.masks` to the arguments of each call before it: queries that `attention_mask` masks, or in a decoder
    after an encoder `decoder_attention_mask`, are not counted.
    """
    count, between_tokens = SignCount(), getattr(model, "attends_between_tokens", True)

    def add(mask: str, coefficients: Tensor) -> Tensor:
        keep = count.masks.get(mask) if between_tokens else None
        rows = at_tokens(coefficients.movedim(2, 1), keep)
        negative = int((rows < -threshold).sum())
        count.counted += negative + int((rows > threshold).sum())
        count.negative += negative
        return coefficients

    translates = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    decoder = signed_layers(model.get_decoder()) if translates else []
    encoder = [layer for layer in signed_layers(model) if layer not in decoder]
    check_attends(model)
    with (
        intervening(model, encoder, Interventions(edits=(partial(add, MASK),))),
        intervening(model, decoder, Interventions(edits=(partial(add, DECODER_MASK),))),
    ):
        yield count


@torch.inference_mode()
def negative_share(
    model: nn.Module, batches: Iterable[Mapping[str, Tensor]], threshold: float = NEGLIGIBLE
) -> float | None:
    """The share of negative coefficients among those that `counted_signs` counts, in [0, 1]; None without any."""
    with counted_signs(model, threshold) as count:
        for batch in batches:
            count.masks = batch
            model(**batch)
    return count.share


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
    usual = getattr(getattr(model.config, "vision_config", model.config), "image_size", None)
    usual = (usual, usual) if isinstance(usual, int) else usual and tuple(usual)
    if pixels is None or usual is None or tuple(pixels.shape[-2:]) == usual:
        return None
    if len(set(usual)) > 1:  # their positions would be taken for those of a square
        expected, size = (" x ".join(map(str, sides)) for sides in (usual, pixels.shape[-2:]))
        raise ValueError(
            f"expected images of {expected} pixels, got {size}: transformers interpolates the positions of "
            f"{type(model).__name__} for square images alone; leave out size (--size)."
        )
    return args, {INTERPOLATE: True, **kwargs}


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the context, and no compiled graphs, which ignore hooks; restores all modes afterwards.

    Inside, a ViT, DeiT or CLIP interpolates its position embeddings for images of another size than the config's, for
    which it raises an error otherwise; models such as DINOv2 need no help. Gradients flow through quantised weights.
    """
    sized = [model] if INTERPOLATE in inspect.signature(type(model).forward).parameters else []
    with evaluation_mode(model), graphs.stopped(), gradients_through(model), hooked(sized, before=_interpolating):
        yield
