"""Compares the Triton kernel with the eager path on this machine, once, before "auto" uses it."""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from transformers.utils import logging

from .attention_call import AttentionCall

logger = logging.get_logger(__name__)

LENGTH, HEADS = 80, 2  # size of the example; the length is above most block sizes and a multiple of none
ROUNDINGS = 8  # accepted relative difference, in rounding errors of the dtype


@torch.compiler.assume_constant_result
def fused_agrees(device: torch.device, dtype: torch.dtype, head_dim: int, value_dim: int) -> bool:
    """Whether the kernel matches the eager path for tensors of this kind; logs one warning with the reason if not."""
    return _agrees(device, dtype, head_dim, value_dim)


@lru_cache  # a separate function, because torch.compile traces a function that is both cached and marked constant
def _agrees(device: torch.device, dtype: torch.dtype, head_dim: int, value_dim: int) -> bool:
    from .fused_attention import fused_attention

    found = difference_from_eager(fused_attention, device, dtype, head_dim, value_dim)
    if found:
        logger.warning(
            f"The fused kernel of signed attention is not used for {dtype}, head dimension {head_dim}, on {device}: "
            f'{found}. Another exact implementation is used; attn_implementation="fused" uses the kernel anyway.'
        )
    return not found


def difference_from_eager(
    attend: Callable[..., Tensor], device: torch.device, dtype: torch.dtype, head_dim: int, value_dim: int
) -> str | None:
    """Compare a fused attention with the eager path on a small masked example, forward and backward.

    Args:
        attend: has the signature of `fused_attention`.

    Returns:
        A clause about the first difference or the error; None if everything matches.
    """
    from .eager_attention import eager_attention

    generator, call = torch.Generator().manual_seed(0), AttentionCall(scaling=head_dim**-0.5)
    sizes = (head_dim, head_dim, value_dim, value_dim)
    # rounded to the dtype first, so that both paths get the same numbers
    drawn = [torch.randn(1, HEADS, LENGTH, size, generator=generator).to(device, dtype) for size in sizes]
    keep = (torch.arange(LENGTH) < LENGTH - 7).to(device)[None, None, None]

    def computed(precision: torch.dtype, path: Callable[..., Tensor]) -> list[Tensor]:
        *inputs, weight = (x.to(precision, copy=True) for x in drawn)
        context = path(*(x.requires_grad_() for x in inputs), keep)
        return [context, *torch.autograd.grad((context * weight).sum(), inputs)]

    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            exact = computed(torch.float32, lambda q, k, v, keep: eager_attention(q, k, v, keep, call)[0])
            fused = computed(dtype, lambda *x: attend(*x, call))
    except Exception as error:  # compilers, drivers and launches raise errors of many types
        return f"it failed with {type(error).__name__} ({str(error).strip().partition(chr(10))[0]})"
    names, allowed = ("output", "query gradient", "key gradient", "value gradient"), ROUNDINGS * torch.finfo(dtype).eps
    for name, expected, got in zip(names, exact, fused, strict=True):
        relative = ((got.float() - expected).norm() / expected.norm()).item()
        if not relative <= allowed:
            return f"its {name} differs from the eager path by {relative:.1%}; rounding explains {allowed:.1%}"
    return None
