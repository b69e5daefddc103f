"""Attention as scores: the coefficients of a query, rollout through the layers, and what both share with flow."""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from hf_bidir.explain.forward import (
    ForwardCache,
    check_exists,
    read_position,
    sequence_length,
    takes_embedding,
    token_positions,
)
from hf_bidir.explain.request import Request
from hf_bidir.modeling.activations import upcast


@torch.no_grad()
def attention_rollout(
    attentions: Sequence[Tensor], keep: Tensor | None = None, residual: float = 0.5, *, head: int | None = None
) -> Tensor:
    """Trace attention through all layers, with the skip connection as a share `r` of each token.

    With `A_l` the coefficients of layer `l`, the rollout is the product, from the top layer down, of

        ((1 - r) |A_l| + r I) / ((1 - r) Σ_j |A_l| + r)

    With softmax and `r = 1/2` it is the rollout of Abnar & Zuidema 2020 ("Quantifying Attention Flow in Transformers",
    section 3).

    Args:
        attentions: per layer, from the bottom up, `[batch, heads, length, length]`, signed or not.
        keep: `[batch, length]`, a tokenizer's `attention_mask`.
        residual: the share `r` of the skip connection, in [0, 1].
        head: use this head alone; by default the mean of `|A|` over heads.

    Returns:
        `[batch, queries, keys]`, queries in the top layer and keys in the input. Rows sum to 1; those of padding and
        its columns are 0.

    Raises:
        ValueError: no coefficients, or NaN.
    """
    keep, layers = magnitudes_of(attentions, keep, head)
    steps = [_with_skip(layer, residual) for layer in layers]
    rollout = reduce(lambda below, step: step @ below, steps)
    return rollout * _pairs(keep)


def _with_skip(coefficients: Tensor, residual: float) -> Tensor:
    """One layer `[batch, queries, keys]` with its skip connection; rows sum to 1, or to 0 where nothing attends."""
    total = (1 - residual) * coefficients.sum(-1, keepdim=True) + residual
    tiny = torch.finfo(total.dtype).tiny
    step = coefficients * ((1 - residual) / total.clamp_min(tiny))
    if residual:
        share = residual / total
        step.diagonal(dim1=-2, dim2=-1).add_(share.squeeze(-1))
    return step


def magnitudes_of(attentions: Sequence[Tensor], keep: Tensor | None, head: int | None) -> tuple[Tensor, list[Tensor]]:
    """The keep-mask, and `|a|` of a head or the mean over heads, `[batch, queries, keys]` per layer, 0 at padding.

    Raises:
        ValueError: as in `attention_rollout`.
    """
    if not attentions or any(layer is None for layer in attentions):
        raise ValueError(
            "expected the coefficients of every layer, got none: this attention backend does not return them. Call "
            'model.set_attn_implementation("eager") and then the model with output_attentions=True.'
        )
    bottom = attentions[0]
    if keep is None:
        keep = bottom.new_ones(len(bottom), bottom.shape[-1])
    keep = keep.to(bottom.device).bool()
    padding = ~_pairs(keep)
    layers = [magnitude(layer, head).masked_fill(padding, 0) for layer in attentions]
    if not all(layer.isfinite().all() for layer in layers):
        raise ValueError("expected finite coefficients, got NaN or infinity.")
    return keep, layers


def magnitude(attention: Tensor, head: int | None) -> Tensor:
    """`|a|` `[batch, heads, queries, keys]` as `[batch, queries, keys]`, in at least fp32."""
    magnitudes = upcast(attention).abs()
    return magnitudes.mean(1) if head is None else magnitudes[:, head]


def _pairs(keep: Tensor) -> Tensor:
    """Whether query and key are tokens, `[batch, queries, keys]`."""
    return keep.unsqueeze(-1) & keep.unsqueeze(-2)


@torch.no_grad()
def attention(cache: ForwardCache, request: Request) -> Tensor:
    """`|a|` of the query that the output is read from, in the requested or last layer."""
    layers = layers_up_to(cache.coefficients, cache, request)
    return from_source(magnitude(layers[-1], request.head), cache, request)


@torch.no_grad()
def rollout(cache: ForwardCache, request: Request) -> Tensor:
    """`attention_rollout` at the position that the output is read from."""
    layers = layers_up_to(cache.coefficients, cache, request)
    return from_source(attention_rollout(layers, cache.keep, head=request.head), cache, request)


def layers_up_to(layers: Sequence[Tensor], cache: ForwardCache, request: Request) -> Sequence[Tensor]:
    """The layers, `[batch, heads, queries, keys]` each, up to the requested one."""
    sequence_length(cache.model, cache.inputs, layers)
    check_exists("layer", request.layer, len(layers))
    check_exists("head", request.head, layers[0].shape[1])
    return layers if request.layer is None else layers[: request.layer + 1]


def source_of(matrix: Tensor, cache: ForwardCache, request: Request) -> Tensor:
    """The position that the output is read from, `[batch]`; of several that are pooled the one of largest share."""
    if takes_embedding(cache.model):
        return cache.model.pooling_weights(cache.keep).argmax(-1)
    if request.position is None:
        return read_position(matrix, cache.keep)
    return token_positions(request.position, cache.keep)


def from_source(matrix: Tensor, cache: ForwardCache, request: Request) -> Tensor:
    """The row of the source position in `[batch, queries, keys]`; the mean over the pooled ones, by their shares."""
    if takes_embedding(cache.model):
        weights = cache.model.pooling_weights(cache.keep).to(matrix)
        return (weights.unsqueeze(1) @ matrix).squeeze(1)
    examples = torch.arange(len(matrix), device=matrix.device)
    return matrix[examples, source_of(matrix, cache, request)]
