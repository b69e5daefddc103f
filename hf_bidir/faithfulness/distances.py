"""How far apart two distributions are: of answers, and of attention."""

import torch
from torch import Tensor


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """`½ Σ_c |p_c - q_c|` over all classes, in [0, 1]; `[..., classes]` to `[...]`."""
    return 0.5 * (first - second).abs().sum(-1)


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Jensen-Shannon divergence in nats, in [0, ln 2]; `[..., outcomes]` to `[...]`.

    Both are made distributions first: their sizes, divided by their sum. So coefficients with signs can be compared by
    how much they attend, not by what for (Jain and Wallace 2019, section 4.2.2, for softmax). A row of zeros is at 0
    from another one, and at (ln 2) / 2 from everything else.
    """
    p, q = _as_distribution(first), _as_distribution(second)
    middle = (p + q) / 2
    divergence = 0.5 * (_relative_entropy(p, middle) + _relative_entropy(q, middle))
    return divergence.clamp_min(0)  # of equal rows, rounding makes it a little less


def _as_distribution(values: Tensor) -> Tensor:
    sizes = values.to(torch.promote_types(values.dtype, torch.float32)).abs()
    total = sizes.sum(-1, keepdim=True)
    return sizes / total.masked_fill(total == 0, 1)


def _relative_entropy(p: Tensor, q: Tensor) -> Tensor:
    tiny = torch.finfo(p.dtype).tiny  # 0 log 0 is 0, and so is its gradient here, which torch.xlogy makes NaN
    return (p * (p.clamp_min(tiny).log() - q.clamp_min(tiny).log())).sum(-1)
