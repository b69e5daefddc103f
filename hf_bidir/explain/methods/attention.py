"""Attention as scores: the coefficients of a query, rollout through the layers, and what both share with flow."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_bidir.modeling.activations import upcast

from ..forward import (
    ForwardCache,
    check_exists,
    read_position,
    sequence_length,
    takes_embedding,
    token_positions,
)
from ..request import Request


@torch.no_grad()
def attention_rollout(attentions: Sequence[Tensor], keep: Tensor | None = None, residual: float = 0.5) -> Tensor:
    """Trace attention through all layers, with the skip connection as a share `r` of each token.

    With `A_l` the coefficients of layer `l`, the rollout is the product, from the top layer down, of

        ((1 - r) |A_l| + r I) / ((1 - r) Σ_j |A_l| + r)

    With softmax and `r = 1/2` it is the rollout of Abnar & Zuidema 2020 ("Quantifying Attention Flow in Transformers",
    section 3).

    Args:
        attentions: per layer, from the bottom up, `[batch, heads, length, length]`, signed or not; of several heads
            the mean of `|A|` is taken.
        keep: `[batch, length]`, a tokenizer's `attention_mask`.
        residual: the share `r` of the skip connection, in [0, 1].

    Returns:
        `[batch, queries, keys]`, queries in the top layer and keys in the input. Rows sum to 1; those of padding and
        its columns are 0.

    Raises:
        ValueError: no coefficients, or NaN.
    """
    keep, layers = magnitudes_of(attentions, keep)
    identity = torch.eye(layers.shape[-1]).to(layers)
    rollout = identity
    for layer in layers:
        step = (1 - residual) * layer + residual * identity
        total = step.sum(-1, keepdim=True)
        rollout = step / total.clamp_min(torch.finfo(total.dtype).tiny) @ rollout
    return rollout * keep.unsqueeze(-1)


def magnitudes_of(attentions: Sequence[Tensor], keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """The keep-mask, and the mean of `|a|` over heads, `[layers, batch, queries, keys]`, 0 at padding.

    Raises:
        ValueError: as in `attention_rollout`.
    """
    if not attentions or any(layer is None for layer in attentions):
        raise ValueError(
            "expected the coefficients of every layer, got none: this attention backend does not return them. Call "
            'model.set_attn_implementation("eager") and then the model with output_attentions=True.'
        )
    layers = torch.stack([_magnitude(layer) for layer in attentions])
    if keep is None:
        keep = layers.new_ones(layers.shape[1:3])
    keep = keep.to(layers.device).bool()
    pairs = keep.unsqueeze(-1) & keep.unsqueeze(-2)
    layers = layers.masked_fill(~pairs, 0)
    if not layers.isfinite().all():
        raise ValueError("expected finite coefficients, got NaN or infinity.")
    return keep, layers


def _magnitude(layer: Tensor) -> Tensor:
    """The mean of `|a|` over heads, `[batch, queries, keys]`, in at least fp32."""
    return upcast(layer).abs().mean(1)


@torch.no_grad()
def attention(cache: ForwardCache, request: Request) -> Tensor:
    """`|a|` of the query that the output is read from, in the requested or last layer."""
    layers = layers_up_to(cache.coefficients, cache, request)
    return from_source(_magnitude(layers[-1]), cache, request)


@torch.no_grad()
def rollout(cache: ForwardCache, request: Request) -> Tensor:
    """`attention_rollout` at the position that the output is read from."""
    layers = layers_up_to(cache.coefficients, cache, request)
    return from_source(attention_rollout(layers, cache.keep), cache, request)


def layers_up_to(
    layers: Sequence[Tensor],
    cache: ForwardCache,
    request: Request,
    pooled: bool = False,
) -> Sequence[Tensor]:
    """The layers up to the requested one, `[batch, heads, queries, keys]` each, with all heads or the requested one.

    Args:
        pooled: as in `sequence_length`.
    """
    sequence_length(cache.model, cache.inputs, layers, pooled)
    check_exists("layer", request.layer, len(layers))
    check_exists("head", request.head, layers[0].shape[1])
    if request.layer is not None:
        layers = layers[: request.layer + 1]
    if request.head is not None:
        layers = [layer[:, [request.head]] for layer in layers]
    return layers


def source_of(matrix: Tensor, cache: ForwardCache, request: Request) -> Tensor:
    """The position that the output is read from, `[batch]`; of several that are pooled the one of largest share."""
    return _source_weights(matrix, cache, request).argmax(-1)


def from_source(matrix: Tensor, cache: ForwardCache, request: Request) -> Tensor:
    """The row of the source position in `[batch, queries, keys]`; the mean over the pooled ones, by their shares."""
    weights = _source_weights(matrix, cache, request)
    return (weights.unsqueeze(1) @ matrix).squeeze(1)


def _source_weights(matrix: Tensor, cache: ForwardCache, request: Request) -> Tensor:
    """The share of each query of `[batch, ..., queries, keys]` in what the output is read from, `[batch, queries]`."""
    if takes_embedding(cache.model):
        return cache.model.pooling_weights(cache.keep).to(matrix)
    position: Any = read_position(matrix, cache.keep) if request.position is None else request.position
    positions = token_positions(position, cache.keep)
    return nn.functional.one_hot(positions, matrix.shape[-2]).to(matrix).mean(1)
