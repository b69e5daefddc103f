"""Gradient-weighted attention, traced through the layers, with signs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_bidir.explain.forward import ForwardCache
from hf_bidir.explain.methods.attention import from_source, layers_up_to
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
    bottom = edges[0][:, 0]
    identity = torch.eye(bottom.shape[-1], dtype=bottom.dtype, device=bottom.device)
    supporting = opposing = identity.expand_as(bottom)
    for layer in edges:
        supporting = supporting + layer.clamp_min(0).mean(1) @ supporting
        opposing = opposing + (-layer).clamp_min(0).mean(1) @ opposing
    return supporting - opposing


def chefer(cache: ForwardCache, request: Request) -> Tensor:
    """`gradient_rollout` of the layers up to the requested one, at the position that the output is read from."""
    edges = layers_up_to(edge_contributions(cache, request), cache, request)
    if request.head is not None:
        edges = [layer[:, [request.head]] for layer in edges]
    return from_source(gradient_rollout(edges), cache, request)
