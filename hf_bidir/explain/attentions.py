"""Checks and head reduction of attention coefficients, shared by rollout and flow."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from hf_bidir.modeling.activations import upcast

Heads = Literal["mean", "max"] | int


def check_attentions(attentions: Sequence[Tensor], keep: Tensor | None) -> Tensor:
    """Check that every layer has coefficients `[batch, heads, length, length]` of one length.

    Returns:
        The keep-mask as a boolean `[batch, length]` on the coefficients' device; without one, True everywhere.

    Raises:
        ValueError: no coefficients, other shapes, or a keep-mask that does not fit.
    """
    if isinstance(attentions, Mapping):
        raise ValueError(
            f"expected the coefficients of every layer, got {type(attentions).__name__}; pass its .attentions."
        )
    missing = attentions is None or len(attentions) == 0 or any(layer is None for layer in attentions)
    if missing:
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


def combine_heads(attention: Tensor, heads: Heads, *, magnitude: bool) -> Tensor:
    """Reduce coefficients `[batch, heads, queries, keys]` to `[batch, queries, keys]`, in at least fp32.

    Args:
        heads: "mean"; "max", the coefficient of largest magnitude; or the index of one head.
        magnitude: combine `|a|` instead of `a`.
    """
    attention = upcast(attention)
    count = attention.shape[1]
    if heads == "mean":
        return (attention.abs() if magnitude else attention).mean(1)
    if heads == "max":
        highest, lowest = attention.amax(1), attention.amin(1)
        largest = torch.where(highest >= -lowest, highest, lowest)
        return largest.abs() if magnitude else largest
    if not isinstance(heads, int) or not -count <= heads < count:
        raise ValueError(f'expected heads "mean", "max" or an index from 0 to {count - 1}, got {heads!r}.')
    return attention[:, heads].abs() if magnitude else attention[:, heads]


def check_residual(residual: float) -> None:
    if not 0 <= residual <= 1:
        raise ValueError(f"expected residual, the share of the skip connection, in [0, 1]; got {residual}.")


def check_finite(coefficients: Tensor) -> None:
    if not coefficients.isfinite().all():
        raise ValueError("expected finite coefficients, got NaN or infinity.")


def read_position(coefficients: Tensor, keep: Tensor) -> Tensor:
    """The position that the output is read from, `[batch]`: the first token, or the last one in causal attention.

    Args:
        coefficients: `[..., queries, keys]` of one layer.
        keep: boolean `[batch, length]`; padding is skipped.
    """
    causal = coefficients.shape[-2] == coefficients.shape[-1] and not coefficients.triu(1).any()
    positions = torch.arange(keep.shape[1], device=keep.device)
    return (positions * keep * causal).argmax(-1)


def token_positions(position: int | Sequence[int] | Tensor, keep: Tensor) -> Tensor:
    """Expand one position for all examples, or one per example, to `[batch]` on the device of `keep` `[batch, length]`.

    Raises:
        ValueError: a wrong number of positions, or a position that is padding or out of range.
    """
    batch, length = keep.shape
    positions = torch.as_tensor(position, device=keep.device)
    if positions.dim() > 1 or positions.numel() not in (1, batch) or positions.is_floating_point():
        raise ValueError(f"expected one position, or one per example ({batch}), got {position}.")
    positions = positions.long().reshape(-1).expand(batch)
    inside = (positions >= 0) & (positions < length)
    if not (inside & keep.gather(1, positions.clamp(0, length - 1).unsqueeze(1)).squeeze(1)).all():
        raise ValueError(f"expected the position of a token, not padding, from 0 to {length - 1}; got {position}.")
    return positions
