"""Gradient-weighted attention, traced through the layers, with signs."""

from collections.abc import Sequence
from functools import reduce

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


def _identity(edges: Tensor, size: int) -> Tensor:
    """`[batch, size, size]`, in the precision and on the device of the edges."""
    return torch.eye(size, dtype=edges.dtype, device=edges.device).expand(len(edges), -1, -1)


def chefer(cache: ForwardCache, request: Request) -> Tensor:
    """`gradient_rollout` of the layers up to the requested one, at the position that the output is read from."""
    edges = chosen_layers(edge_contributions(cache, request), cache, request)
    if request.head is not None:
        edges = [layer[:, request.head : request.head + 1] for layer in edges]
    return from_source(gradient_rollout(edges), cache, request)
