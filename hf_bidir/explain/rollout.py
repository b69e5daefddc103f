"""Attention rollout: where the tokens of the top layer come from, by the product of the layers' coefficients."""

from collections.abc import Sequence
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
    """Trace attention through all layers, with the skip connection as a share of every token's own past.

    With `A_l` the coefficients of layer `l` and `r` the residual share, the rollout is the product from the top layer
    down of

        magnitude:  ((1 - r) |A_l| + r I) / ((1 - r) Σ_j |A_l| + r)
        signed:     ((1 - r)  A_l  + r I) / ((1 - r) Σ_j |A_l| + r)

    At `r = 1/2` these are `(A_l + I) / (1 + Σ|A_l|)`; on softmax both are the rollout of Abnar & Zuidema 2020
    ("Quantifying Attention Flow in Transformers", section 3). The classic division by `Σ_j (A_l + I)` has no place
    here: a signed sum can be 0.

    Args:
        attentions: per layer, from the bottom up, `[batch, heads, length, length]`, signed or not.
        keep: `[batch, length]`, True or 1 where there is a token; a tokenizer's `attention_mask`.
        residual: the share `r` of the skip connection, in [0, 1].
        mode: "magnitude" asks how much passes, whatever its sign. "signed" multiplies the signs as well, and needs
            oriented heads (`orient_heads`): at `λ = 1` the sign of a whole head is arbitrary, and averaging over heads
            whose signs mean different things says nothing.
        heads: "mean" over heads (of `|A|` in magnitude mode); "max", the largest in size; or one head's number.

    Returns:
        `[batch, queries, keys]`, queries in the top layer and keys in the input. Rows sum to 1 in magnitude mode; in
        signed mode their sizes sum to at most 1, so each entry lies in [-1, 1]. Padding has zeros in both directions.

    Raises:
        ValueError: no coefficients, or NaN; layers of different lengths, an unknown mode or head.
    """
    keep = check_attentions(attentions, keep)
    check_residual(residual)
    if mode not in ("magnitude", "signed"):
        raise ValueError(f'expected mode "magnitude" or "signed", got {mode!r}.')
    pairs = keep.unsqueeze(-1) & keep.unsqueeze(-2)
    rollout = None
    for attention in attentions:
        coefficients = combine_heads(attention, heads, magnitude=mode == "magnitude").masked_fill(~pairs, 0)
        step = _step(coefficients, residual)
        rollout = step if rollout is None else step @ rollout
    check_finite(rollout)
    return rollout * pairs


def _step(coefficients: Tensor, residual: float) -> Tensor:
    """One layer `[batch, queries, keys]` with its skip connection, rows scaled to a sum of sizes of at most 1."""
    total = (1 - residual) * torch.linalg.vector_norm(coefficients, ord=1, dim=-1, keepdim=True) + residual
    step = coefficients * ((1 - residual) / total.clamp_min(torch.finfo(total.dtype).tiny))
    step.diagonal(dim1=-2, dim2=-1).add_((residual / total).squeeze(-1) if residual else 0)
    return step
