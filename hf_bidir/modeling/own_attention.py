"""An attention function that a user registered with transformers: a signed layer computes it at `λ = 0`."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention_call import MASKED
from .compat import is_kernel
from .eager_attention import grouped_matmul
from .interventions import Interventions


def is_own_function(name: str | None) -> bool:
    """Whether `name` is a function of neither transformers nor this package."""
    if name is None or name not in ALL_ATTENTION_FUNCTIONS or name == "fused" or is_kernel(name):
        return False
    return not getattr(ALL_ATTENTION_FUNCTIONS[name], "__module__", "").startswith("transformers.")


def own_attention(
    layer: nn.Module, name: str, changes: Interventions, states: tuple[Tensor, ...], mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """What the function `name` returns for query, key and value, with changes of its coefficients or its mask.

    Without the keys that a change drops, a query may have none left; its context is then 0.

    Raises:
        ValueError: changed coefficients of a function that returns none, or others than its context is computed by.
    """
    left = None  # which queries have a key, [batch, heads or 1, queries, 1]
    if changes.keep is not None:
        if mask is None:
            raise ValueError(f'attn_implementation="{name}" gets no mask here, so no key can be dropped from it.')
        dropped = torch.finfo(mask.dtype).min if mask.is_floating_point() else False
        mask = mask.masked_fill(~changes.keep, dropped)
        left = (mask > MASKED if mask.is_floating_point() else mask.bool()).any(-1, keepdim=True)
    context, coefficients = ALL_ATTENTION_FUNCTIONS[name](layer, *states, mask, **options)
    if left is not None:
        context = context.masked_fill(~left.transpose(1, 2), 0)
    if changes.edit is None:
        return context, coefficients
    value = states[2]
    if coefficients is None or not _agree(grouped_matmul(coefficients, value).transpose(1, 2), context):
        found = "none" if coefficients is None else "others"
        raise ValueError(
            f"explanations need the coefficients [batch, heads, queries, keys] whose product with the values is the "
            f'context; attn_implementation="{name}" returns {found}.'
        )
    coefficients = changes.edit(coefficients)
    return grouped_matmul(coefficients, value).transpose(1, 2).contiguous(), coefficients


def _agree(found: Tensor, context: Tensor) -> bool:
    return torch.allclose(found, context, rtol=1e-2, atol=1e-2 * context.abs().max().item())
