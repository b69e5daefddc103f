"""Attention as scores: the coefficients of a query, rollout through the layers, and what both share with flow."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Literal

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

Heads = Literal["mean", "max"] | int


@torch.no_grad()
def attention_rollout(
    attentions: Sequence[Tensor],
    keep: Tensor | None = None,
    residual: float = 0.5,
    heads: Heads = "mean",
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
        heads: "mean" of `|A|` over heads; "max", the largest one; or the index of a head.

    Returns:
        `[batch, queries, keys]`, queries in the top layer and keys in the input. Rows sum to 1; those of padding and
        its columns are 0.

    Raises:
        ValueError: no coefficients, NaN, layers of different lengths, or an unknown head.
    """
    keep = check_attentions(attentions, keep, residual)
    pairs = keep.unsqueeze(-1) & keep.unsqueeze(-2)
    steps = (_step(magnitudes_of(layer, heads).masked_fill(~pairs, 0), residual) for layer in attentions)
    rollout = reduce(lambda below, step: step @ below, steps)
    check_finite(rollout)
    return rollout * pairs


def _step(coefficients: Tensor, residual: float) -> Tensor:
    """One layer `[batch, queries, keys]` with its skip connection; rows sum to 1, or to 0 where nothing attends."""
    total = (1 - residual) * coefficients.sum(-1, keepdim=True) + residual
    step = coefficients * ((1 - residual) / total.clamp_min(torch.finfo(total.dtype).tiny))
    step.diagonal(dim1=-2, dim2=-1).add_((residual / total).squeeze(-1) if residual else 0)
    return step


def check_attentions(attentions: Sequence[Tensor], keep: Tensor | None, residual: float) -> Tensor:
    """The keep-mask as a boolean `[batch, length]` on the device of the coefficients, once all are checked."""
    if not 0 <= residual <= 1:
        raise ValueError(f"expected residual, the share of the skip connection, in [0, 1]; got {residual}.")
    if isinstance(attentions, Mapping):
        raise ValueError(
            f"expected the coefficients of every layer, got {type(attentions).__name__}; pass its .attentions."
        )
    if attentions is None or len(attentions) == 0 or any(layer is None for layer in attentions):
        raise ValueError(
            "expected the coefficients of every layer, got none: this attention backend does not return them. Call "
            'model.set_attn_implementation("eager") and then the model with output_attentions=True.'
        )
    shapes = [tuple(layer.shape) for layer in attentions]
    batch, length = shapes[0][0], shapes[0][-1]
    expected = [(batch, shape[1] if len(shape) == 4 else 0, length, length) for shape in shapes]
    if shapes != expected or 0 in shapes[0]:
        raise ValueError(
            "expected coefficients [batch, heads, length, length] with the same length in every layer, got "
            f"{', '.join(map(str, dict.fromkeys(shapes)))}."
        )
    if keep is None:
        return torch.ones(batch, length, dtype=torch.bool, device=attentions[0].device)
    if tuple(keep.shape) != (batch, length):
        raise ValueError(
            f"expected keep [batch, length] = {(batch, length)}, for example a tokenizer's attention_mask; "
            f"got {tuple(keep.shape)}."
        )
    return keep.to(attentions[0].device).bool()


def magnitudes_of(attention: Tensor, heads: Heads) -> Tensor:
    """`|a|` `[batch, heads, queries, keys]` as `[batch, queries, keys]`, in at least fp32."""
    attention = upcast(attention).abs()
    count = attention.shape[1]
    if heads == "mean":
        return attention.mean(1)
    if heads == "max":
        return attention.amax(1)
    if not isinstance(heads, int) or not -count <= heads < count:
        raise ValueError(f'expected heads "mean", "max" or an index from 0 to {count - 1}, got {heads!r}.')
    return attention[:, heads]


def check_finite(coefficients: Tensor) -> None:
    if not coefficients.isfinite().all():
        raise ValueError("expected finite coefficients, got NaN or infinity.")


def attention(cache: ForwardCache, request: Request) -> Tensor:
    """`|a|` of the query that the output is read from, in the requested or last layer."""
    layer = coefficients_of(cache, request)[-1]
    return from_source(magnitudes_of(layer, heads_of(request)), cache, request)


def rollout(cache: ForwardCache, request: Request) -> Tensor:
    """`attention_rollout` at the position that the output is read from."""
    layers = coefficients_of(cache, request)
    return from_source(attention_rollout(layers, cache.keep, heads=heads_of(request)), cache, request)


def coefficients_of(cache: ForwardCache, request: Request) -> Sequence[Tensor]:
    """Coefficients of the layers up to the requested one."""
    with torch.no_grad():
        return chosen_layers(cache.coefficients, cache, request)


def chosen_layers(layers: Sequence[Tensor], cache: ForwardCache, request: Request) -> Sequence[Tensor]:
    """The layers, `[batch, heads, queries, keys]` each, up to the requested one."""
    sequence_length(cache.model, cache.inputs, layers)
    check_exists("layer", request.layer, len(layers))
    check_exists("head", request.head, layers[0].shape[1])
    return layers if request.layer is None else layers[: request.layer + 1]


def heads_of(request: Request) -> Literal["mean"] | int:
    return "mean" if request.head is None else request.head


def source_of(matrix: Tensor, cache: ForwardCache, request: Request) -> Tensor:
    """The position that the output is read from, `[batch]`; of several that are pooled the one of largest share."""
    if takes_embedding(cache.model):
        return cache.model.pooling_weights(cache.keep).argmax(-1)
    position = read_position(matrix, cache.keep) if request.position is None else request.position
    return token_positions(position, cache.keep)


def from_source(matrix: Tensor, cache: ForwardCache, request: Request) -> Tensor:
    """The row of the source position in `[batch, queries, keys]`; the mean over the pooled ones, by their shares."""
    if takes_embedding(cache.model):
        weights = cache.model.pooling_weights(cache.keep).to(matrix)
        return (weights.unsqueeze(1) @ matrix).squeeze(1)
    return matrix[torch.arange(len(matrix), device=matrix.device), source_of(matrix, cache, request)]
