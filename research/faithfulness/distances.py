"""Distances between distributions of class probabilities or attention."""

import torch
from torch import Tensor

from hf_bidir.modeling.activations import upcast


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """`½ Σ_c |p_c - q_c|` over all classes, in [0, 1]; `[..., classes]` to `[...]`."""
    return 0.5 * (first - second).abs().sum(-1)


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Jensen-Shannon divergence in nats, in [0, ln 2]; `[..., outcomes]` to `[...]`.

    The magnitudes of both are first normalised to a sum of 1, so signs are ignored (Jain and Wallace 2019, section
    4.2.2, for softmax). A row of zeros has divergence 0 from another one and (ln 2) / 2 from any other row.
    """
    p, q = _as_distribution(first), _as_distribution(second)
    middle = (p + q) / 2
    divergence = 0.5 * (_relative_entropy(p, middle) + _relative_entropy(q, middle))
    return divergence.clamp_min(0)  # rounding can make it negative for equal rows


def _as_distribution(values: Tensor) -> Tensor:
    magnitudes = upcast(values).abs()
    total = magnitudes.sum(-1, keepdim=True)
    return magnitudes / total.masked_fill(total == 0, 1)


def _relative_entropy(p: Tensor, q: Tensor) -> Tensor:
    tiny = torch.finfo(p.dtype).tiny  # makes 0 log 0 and its gradient 0; the gradient of torch.xlogy is NaN
    return (p * (p.clamp_min(tiny).log() - q.clamp_min(tiny).log())).sum(-1)
