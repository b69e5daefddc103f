"""Signed attention (TanhMax): functions for tensors, and the attention interface of transformers.

The files beside this one are copies of hf_bidir/modeling and hf_bidir/kernels, made by `make kernel`.
"""

from typing import Any

from torch import Tensor, nn

from . import fused_path  # noqa: F401  enters "fused" among the implementations
from .attention import bidir_attention
from .attention_call import keep_and_bias, same_batch

__all__ = ["bidir_attention", "flash_attn_forward", "supports_flash_attn"]

supports_flash_attn = True  # with this, transformers passes the masks of "sdpa"; padding would be attended to without
# arguments of some models that would change the result
REFUSED = (
    "position_bias", "softcap", "s_aux", "block_indices", "indices", "cache", "cu_seq_lens_q", "cu_seq_lens_k",
)  # fmt: skip


def flash_attn_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """TanhMax attention for a stock model, `attn_implementation="OWNER/signed-attention"` (Huang, Yang, Wang 2024).

    The config's `attn_negative_mass` sets λ: 0 is softmax, 1 (the default) is TanhMax. transformers saves neither this
    implementation nor λ with a checkpoint, which then loads as softmax; the signed models of hf_bidir save both.

    Args:
        query, key, value: `[batch, heads, length, head_dim]`; keys and values may have fewer heads.
        attention_mask: boolean, True = attend, or float with entries of at most -50 for masked keys and 0 elsewhere.
        is_causal: without a mask, query `i` attends to the keys `j <= i`; by default as the layer says.

    Returns:
        The context `[batch, queries, heads, head_dim]`, and None for the coefficients.

    Raises:
        ValueError: the model passes arguments that would change the result, such as biases, or has one λ per layer.
    """
    changed = [name for name in REFUSED if others.get(name) is not None]
    keep, bias = keep_and_bias(attention_mask)
    if changed or bias is not None:
        raise ValueError(
            f"{type(module).__name__} passes {', '.join(changed) or 'a bias in its mask'} to its attention function, "
            "which this kernel does not compute; use hf_bidir.signed(model)."
        )
    mass = getattr(module.config, "attn_negative_mass", 1.0)
    if not isinstance(mass, int | float):
        raise ValueError(f"expected one attn_negative_mass for all layers, got {mass}; use hf_bidir.signed(model).")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    query, key, value = same_batch(query, key, value)
    context, _ = bidir_attention(
        query,
        key,
        value,
        keep,
        negative_mass=mass,
        scaling=scaling,
        dropout=dropout if module.training else 0.0,
        causal=attention_mask is None and causal and query.shape[2] > 1,
    )
    return context.transpose(1, 2).contiguous(), None
