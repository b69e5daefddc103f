"""Attention within concatenated examples without padding, computed by the fused kernel only."""

from dataclasses import replace

from torch import Tensor

from .attention_call import attention_call, check_window
from .attention_inputs import NegativeMass, check_shapes


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
    from .fused_attention import fused_attention, packed_examples

    if not query.dim() == key.dim() == value.dim() == 3:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(f"packed query, key and value are [total, heads, head_dim], got {shapes}.")
    query, key, value = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
    check_shapes(query, key, value, None)
    if activation not in ("tanhmax", "softmax"):
        raise ValueError(f'activation="{activation}" has no fused path; choose "tanhmax" or "softmax".')
    check_window(window)
    call = attention_call(query, key, activation, negative_mass, scaling, dropout)
    call = replace(call, causal=causal, window=window)  # applies within examples; queries and keys may differ in number
    packed = packed_examples(query, key, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k)
    context = fused_attention(query, key, value, None, call, packed)
    return context[0].transpose(0, 1)
