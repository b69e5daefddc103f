"""Whether the Triton kernel computes on this machine what the plain path computes: compared once, before it is used."""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from transformers.utils import logging

from .attention_call import AttentionCall

logger = logging.get_logger(__name__)

LENGTH, HEADS = 80, 2  # of the example: more than one block of most tilings, and not a multiple of any
ROUNDINGS = 8  # differences of this many rounding errors of the dtype are not the kernel's


@torch.compiler.assume_constant_result
def fused_agrees(device: torch.device, dtype: torch.dtype, head_dim: int, value_dim: int) -> bool:
    """Whether the kernel can be trusted with tensors of this kind; warns once where not, and says why."""
    return _compared(device, dtype, head_dim, value_dim)


@lru_cache  # a separate function: torch.compile traces into one that is both cached and marked constant
def _compared(device: torch.device, dtype: torch.dtype, head_dim: int, value_dim: int) -> bool:
    from .fused_attention import fused_attention

    found = difference_from_plain(fused_attention, device, dtype, head_dim, value_dim)
    if found:
        logger.warning(
            f"The fused kernel of signed attention is not used for {dtype}, head dimension {head_dim}, on {device}: "
            f'{found}. Another exact path takes its place; attn_implementation="fused" would insist on the kernel.'
        )
    return not found


def difference_from_plain(
    attend: Callable[..., Tensor], device: torch.device, dtype: torch.dtype, head_dim: int, value_dim: int
) -> str | None:
    """What differs between a fused attention and the plain formula on a small masked example, forward and backward.

    Args:
        attend: has the signature of `fused_attention`.

    Returns:
        A clause that names the largest difference or the error, None where all agree.
    """
    from .attention import eager_attention

    generator, call = torch.Generator().manual_seed(0), AttentionCall(scaling=head_dim**-0.5)
    sizes = (head_dim, head_dim, value_dim, value_dim)
    # rounded to the dtype first, so that both paths read the same numbers
    drawn = [torch.randn(1, HEADS, LENGTH, size, generator=generator).to(device, dtype) for size in sizes]
    keep = (torch.arange(LENGTH) < LENGTH - 7).to(device)[None, None, None]

    def computed(precision: torch.dtype, path: Callable[..., Tensor]) -> list[Tensor]:
        *inputs, weight = (x.to(precision, copy=True) for x in drawn)
        context = path(*(x.requires_grad_() for x in inputs), keep)
        return [context, *torch.autograd.grad((context * weight).sum(), inputs)]

    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            exact = computed(torch.float32, lambda *x: eager_attention(*x, call)[0])
            fused = computed(dtype, lambda *x: attend(*x, call))
    except Exception as error:  # whatever a compiler, a driver or a launch may raise
        return f"it failed with {type(error).__name__} ({str(error).strip().partition(chr(10))[0]})"
    names, allowed = ("output", "query gradient", "key gradient", "value gradient"), ROUNDINGS * torch.finfo(dtype).eps
    for name, expected, got in zip(names, exact, fused, strict=True):
        relative = ((got.float() - expected).norm() / expected.norm()).item()
        if not relative <= allowed:
            return f"its {name} differs from the plain path by {relative:.1%}, and {allowed:.1%} would be rounding"
    return None
