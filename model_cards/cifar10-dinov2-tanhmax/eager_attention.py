"""Attention by the formula: scores, coefficients, context. The reference of every faster path, and differentiable in
every way that torch knows."""

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from .activations import activated
from .attention_call import AttentionCall


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall
) -> tuple[Tensor, Tensor]:
    """The context `[batch, heads, queries, value_dim]` and the coefficients `[batch, heads, queries, keys]`."""
    scores = grouped_matmul(query, key.mT) * call.scaling
    keep = call.mask(keep, query, key)
    if call.softcap is not None:
        scores = (scores / call.softcap).tanh() * call.softcap
    if call.bias is not None:
        scores = scores + call.bias
    if call.sinks is not None:  # appended as an extra last key
        sinks = call.sinks.view(1, -1, 1, 1).to(scores)
        scores = torch.cat([scores, sinks.expand(*scores.shape[:3], 1)], -1)
        keep = None if keep is None else F.pad(keep, (0, 1), value=True)
    coefficients = activated(scores, keep, call.activation, call.negative_mass)
    coefficients = coefficients[..., : key.shape[2]]  # without the sinks
    coefficients = F.dropout(coefficients, call.dropout)
    context = grouped_matmul(coefficients.to(value.dtype), value)
    return context, coefficients


def grouped_matmul(x: Tensor, y: Tensor) -> Tensor:
    """`x @ y` for `[batch, heads, rows, n]` and `[batch, key heads, n, columns]`, without repeating `y`."""
    if x.shape[1] == y.shape[1]:
        return x @ y
    batch, heads, rows, n = x.shape
    grouped = x.reshape(batch, y.shape[1], -1, n)  # the rows of all heads that share a key head
    return (grouped @ y).reshape(-1, heads, rows, y.shape[3])


def is_transformed(*inputs: Tensor | float) -> bool:
    """Whether `torch.func` or forward-mode differentiation is at work, which no custom backward pass takes part in.

    Not for use while compiling.
    """
    if torch._C._are_functorch_transforms_active():
        return True
    if forward_ad._current_level < 0:  # outside of every level of dual numbers
        return False
    return any(forward_ad.unpack_dual(x).tangent is not None for x in inputs if isinstance(x, Tensor))
