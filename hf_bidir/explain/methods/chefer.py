"""Gradient-weighted attention, traced through the layers, with signs."""

from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from hf_bidir.explain.forward import ForwardCache
from hf_bidir.explain.methods.attention import chosen_layers, from_source
from hf_bidir.explain.methods.contributions import edge_contributions
from hf_bidir.explain.request import Request


@torch.no_grad()
def gradient_rollout(edges: Sequence[Tensor]) -> Tensor:
    """The relevance of every token for y minus that for -y.

    Chefer, Gur, Wolf 2021 ("Generic Attention-model Explainability"), equations 5 and 6, once with the gradients of y
    and once with those of -y. The relevance for y is the product `Π_l (I + Ā_l)` from the top layer down, where `Ā_l`
    is the mean over heads of the positive part of `a · ∂y/∂a`. For -y the negative parts take their place.
    `a · ∂y/∂a` does not change where the sign of a head flips.

    Args:
        edges: `a · ∂y/∂a` per layer, from the bottom up, `[batch, heads, length, length]`.

    Returns:
        `[batch, queries, keys]`, queries in the top layer and keys in the input; 0 where no path contributes.
    """
    start = _identity(edges[0], edges[0].shape[-1])

    def traced(sign: int) -> Tensor:
        steps = ((sign * layer).clamp_min(0).mean(1) for layer in edges)
        return reduce(lambda below, step: below + step @ below, steps, start)

    return traced(1) - traced(-1)


@torch.no_grad()
def cross_rollout(edges: Sequence[tuple[Literal["encoder", "decoder", "cross"], Tensor]]) -> Tensor:
    """The relevance of every source token for y minus that for -y, in an encoder-decoder.

    Chefer, Gur, Wolf 2021, equations 5 to 10, with signs as in `gradient_rollout`. With `S` and `T` the relevances of
    source tokens and of target tokens among themselves, and `C` that of the source for the target, an encoder layer
    adds `ĀS` to `S`, a decoder layer `ĀT` to `T` and `ĀC` to `C`, and a cross-attention `T̄ᵀĀS̄` to `C`. The bar divides
    the rows of what was added to `I` by their sums.

    Args:
        edges: `a · ∂y/∂a` of the layers in the order in which they run, `[batch, heads, queries, keys]`, with their
            place; all of the encoder and at least one of the others.

    Returns:
        `[batch, target length, source length]`.
    """
    crossing = next(edge for place, edge in edges if place == "cross")
    batch, _, targets, sources = crossing.shape
    alone = _identity(crossing, targets), _identity(crossing, sources)

    def traced(sign: int) -> Tensor:
        target, source = alone
        cross = crossing.new_zeros(batch, targets, sources)
        for place, edge in edges:
            step = (sign * edge).clamp_min(0).mean(1)
            if place == "encoder":
                source = source + step @ source
            elif place == "decoder":
                target, cross = target + step @ target, cross + step @ cross
            else:
                cross = cross + _by_row(target).mT @ step @ _by_row(source)
        return cross

    return traced(1) - traced(-1)


def _identity(edges: Tensor, size: int) -> Tensor:
    """`[batch, size, size]`, in the precision and on the device of the edges."""
    return torch.eye(size, dtype=edges.dtype, device=edges.device).expand(len(edges), -1, -1)


def _by_row(relevance: Tensor) -> Tensor:
    """What was added to the identity, its rows divided by their sums, and the identity."""
    same = _identity(relevance, relevance.shape[-1])
    added = relevance - same
    return added / added.sum(-1, keepdim=True).clamp_min(torch.finfo(added.dtype).tiny) + same


def chefer(cache: ForwardCache, request: Request) -> Tensor:
    """`gradient_rollout` of the layers up to the requested one, at the position that the output is read from."""
    edges = chosen_layers(edge_contributions(cache, request), cache, request)
    if request.head is not None:
        edges = [layer[:, request.head : request.head + 1] for layer in edges]
    return from_source(gradient_rollout(edges), cache, request)
