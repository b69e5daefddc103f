"""Attention rollout: the product of the layers' coefficients, with skip connections."""

from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from hf_bidir.explain.attentions import Heads, check_attentions, check_finite, check_residual, combine_heads


@torch.no_grad()
def attention_rollout(
    attentions: Sequence[Tensor],
    keep: Tensor | None = None,
    residual: float = 0.5,
    mode: Literal["magnitude", "signed"] = "magnitude",
    heads: Heads = "mean",
) -> Tensor:
    """Trace attention through all layers, with the skip connection as a share `r` of each token.

    With `A_l` the coefficients of layer `l`, the rollout is the product, from the top layer down, of

        magnitude:  ((1 - r) |A_l| + r I) / ((1 - r) Σ_j |A_l| + r)
        signed:     ((1 - r)  A_l  + r I) / ((1 - r) Σ_j |A_l| + r)

    At `r = 1/2` these are `(A_l + I) / (1 + Σ|A_l|)`; with softmax both are the rollout of Abnar & Zuidema 2020
    ("Quantifying Attention Flow in Transformers", section 3). The classic division by `Σ_j (A_l + I)` does not work
    here, because a signed sum can be 0.

    Args:
        attentions: per layer, from the bottom up, `[batch, heads, length, length]`, signed or not.
        keep: `[batch, length]`, a tokenizer's `attention_mask`.
        residual: the share `r` of the skip connection, in [0, 1].
        mode: "magnitude" ignores signs. "signed" multiplies them too and needs oriented heads (`orient_heads`): at
            `λ = 1` the sign of each head is arbitrary, so a mean over heads would be meaningless.
        heads: "mean" over heads (of `|A|` in magnitude mode); "max", the largest magnitude; or the index of a head.

    Returns:
        `[batch, queries, keys]`, queries in the top layer and keys in the input. Rows sum to 1 in magnitude mode; in
        signed mode their magnitudes sum to at most 1, so each entry is in [-1, 1]. Rows and columns of padding are 0.

    Raises:
        ValueError: no coefficients, NaN, layers of different lengths, or an unknown mode or head.
    """
    keep = check_attentions(attentions, keep)
    check_residual(residual)
    if mode not in ("magnitude", "signed"):
        raise ValueError(f'expected mode "magnitude" or "signed", got {mode!r}.')
    pairs = keep.unsqueeze(-1) & keep.unsqueeze(-2)
    magnitude = mode == "magnitude"
    steps = (_step(combine_heads(a, heads, magnitude=magnitude).masked_fill(~pairs, 0), residual) for a in attentions)
    rollout = reduce(lambda below, step: step @ below, steps)
    check_finite(rollout)
    return rollout * pairs


def _step(coefficients: Tensor, residual: float) -> Tensor:
    """One layer `[batch, queries, keys]` with its skip connection; magnitudes in a row sum to at most 1."""
    total = (1 - residual) * torch.linalg.vector_norm(coefficients, ord=1, dim=-1, keepdim=True) + residual
    step = coefficients * ((1 - residual) / total.clamp_min(torch.finfo(total.dtype).tiny))
    step.diagonal(dim1=-2, dim2=-1).add_((residual / total).squeeze(-1) if residual else 0)
    return step
