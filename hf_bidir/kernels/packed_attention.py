"""Attention within concatenated examples without padding, computed by the fused kernel only."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from hf_bidir.modeling.attention_call import NegativeMass, attention_call, check_shapes, check_window


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    max_seqlen: int | None = None,
    max_seqlen_k: int | None = None,
    activation: str = "tanhmax",
    negative_mass: NegativeMass = 1.0,
    scaling: float | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """Compute attention within each of many concatenated examples without padding, in the fused kernel.

    Args:
        query: `[total, heads, head_dim]`, the queries of all examples; `key` and `value` hold all keys.
        cu_seqlens: int32 `[examples + 1]` on the same device: 0, then where each example ends in the queries.
        cu_seqlens_k: the same of the keys, by default that of the queries.
        max_seqlen, max_seqlen_k: the length of the longest example, in queries and in keys. When left out it is looked
            up and the boundaries are checked, which waits for the GPU and cannot be compiled into one graph. When
            given, nothing is checked: invalid boundaries or a longer example give wrong results.
        activation: "tanhmax" or "softmax".
        causal: query `i` of an example attends to its keys `j <= i`.
        window: query `i` of an example attends to its keys with `|i - j| <= window`.
        negative_mass, scaling, dropout: as in `bidir_attention`.

    Returns:
        The context, `[total, heads, head_dim]`.

    Raises:
        ValueError: no GPU, shapes that do not fit, or boundaries that are no int32 vector; ImportError: no Triton.
    """
    from hf_bidir.kernels.fused_attention import fused_attention

    if not query.dim() == key.dim() == value.dim() == 3:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(f"packed query, key and value are [total, heads, head_dim], got {shapes}.")
    query, key, value = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
    check_shapes(query, key, value, None)
    if activation not in ("tanhmax", "softmax"):
        raise ValueError(f'activation="{activation}" has no fused path; choose "tanhmax" or "softmax".')
    check_window(window)
    call = attention_call(query, key, activation, negative_mass, scaling=scaling, dropout=dropout)
    call = replace(call, causal=causal, window=window)  # applies within examples; queries and keys may differ in number
    packed = packed_examples(query, key, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k)
    context = fused_attention(query, key, value, None, call, packed)
    return context[0].transpose(0, 1)


class Packed(NamedTuple):
    """Boundaries of examples whose queries and keys are concatenated in tensors `[1, heads, total, head_dim]`.

    `cu_seqlens` and `cu_seqlens_k` are int32 `[examples + 1]`: 0, then the end of every example. `max_seqlen` and
    `max_seqlen_k` are the largest numbers of queries and of keys in one example.
    """

    cu_seqlens: Tensor
    cu_seqlens_k: Tensor
    max_seqlen: int
    max_seqlen_k: int


def packed_examples(
    query: Tensor,
    key: Tensor,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen: int | None = None,
    max_seqlen_k: int | None = None,
) -> Packed:
    """`Packed` with missing values filled in; ValueError if they cannot be the boundaries of `query` and `key`."""
    if cu_seqlens_k is None:
        if max_seqlen_k is not None or key.shape[2] != query.shape[2]:
            raise ValueError(
                f"without cu_seqlens_k, cu_seqlens also applies to the keys; got {key.shape[2]} keys for "
                f"{query.shape[2]} queries and max_seqlen_k={max_seqlen_k}. Pass cu_seqlens_k."
            )
        cu_seqlens_k, max_seqlen_k = cu_seqlens, max_seqlen
    for name, starts in (("cu_seqlens", cu_seqlens), ("cu_seqlens_k", cu_seqlens_k)):
        _check_starts(name, starts, len(cu_seqlens), query.device)
    for name, longest in (("max_seqlen", max_seqlen), ("max_seqlen_k", max_seqlen_k)):
        if longest is not None and (isinstance(longest, float) or longest < 1):
            raise ValueError(f"{name} must be an integer of at least 1, got {longest}.")
    longest = _longest(cu_seqlens, query.shape[2], "cu_seqlens") if max_seqlen is None else max_seqlen
    if max_seqlen_k is None:
        same = cu_seqlens_k is cu_seqlens
        max_seqlen_k = longest if same else _longest(cu_seqlens_k, key.shape[2], "cu_seqlens_k")
    return Packed(cu_seqlens.contiguous(), cu_seqlens_k.contiguous(), longest, max_seqlen_k)


def _check_starts(name: str, starts: Tensor, count: int, device: torch.device) -> None:
    if not isinstance(starts, Tensor):
        raise ValueError(f"{name} must be an int32 tensor [examples + 1], got a {type(starts).__name__}.")
    if starts.dtype != torch.int32 or starts.dim() != 1 or len(starts) != count or count < 2:
        raise ValueError(
            f"{name} must be int32 [examples + 1], here [{count}] as for the queries and at least [2]; got "
            f"{tuple(starts.shape)} {starts.dtype}. Convert with .int()."
        )
    if starts.device != device:
        raise ValueError(f"{name} must be on {device} like the queries, got {starts.device}; move it with .to().")


def _longest(starts: Tensor, total: int, name: str) -> int:
    """The length of the longest example; ValueError unless the boundaries rise from 0 to `total`."""
    lengths = starts.diff()
    first, last, shortest, longest = torch.stack([starts[0], starts[-1], lengths.min(), lengths.max()]).tolist()
    if first != 0 or last != total or shortest < 0:
        raise ValueError(f"{name} must rise from 0 to {total}, got {starts.tolist()}.")
    return longest
