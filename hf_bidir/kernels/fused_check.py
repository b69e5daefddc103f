"""Compares the Triton kernels with the eager path on this machine, once per dtype and head dimension, before "auto"
uses them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.utils import logging

from hf_bidir.modeling.attention_call import AttentionCall
from hf_bidir.modeling.eager_attention import eager_attention

from .fused_path import fused_obstacle, unsupported

logger = logging.get_logger(__name__)

LENGTH, HEADS = 80, 2  # size of the example; the length is above most block sizes and a multiple of none
ROUNDINGS = 8  # accepted relative difference, in rounding errors of the dtype


class Kind(NamedTuple):
    """What the kernels are compared for."""

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    value_dim: int


def fused_agrees(query: Tensor, value: Tensor) -> bool:
    """Whether "auto" may use the kernels for such tensors: half precision on an NVIDIA GPU of compute capability 8 or
    more, if they match the eager path there. Logs one warning with the reason if they do not."""
    kind = Kind(query.device, query.dtype, query.shape[3], value.shape[3])
    return _agrees_in_graph(kind) if torch.compiler.is_compiling() else agrees(kind)


@torch.compiler.assume_constant_result
def _agrees_in_graph(kind: Kind) -> bool:
    return agrees(kind)


@lru_cache(None)  # apart from the function above: torch.compile traces one that is both cached and marked constant
def agrees(kind: Kind) -> bool:
    """`fused_agrees` for tensors of this kind."""
    half = kind.dtype in (torch.float16, torch.bfloat16)
    if not half or torch.version.hip or fused_obstacle() or unsupported(*kind):
        return False
    from .fused_attention import fused_attention

    difference = difference_from_eager(fused_attention, kind)
    if difference:
        logger.warning(
            f"The fused kernel of signed attention is not used for {kind.dtype}, head dimension {kind.head_dim}, on "
            f'{kind.device}: {difference}. Another exact implementation is used; attn_implementation="fused" uses the '
            "kernel anyway."
        )
    return not difference


def difference_from_eager(attend: Callable[..., Tensor], kind: Kind) -> str | None:
    """Compare `fused_attention`, or what stands in for it, with the eager path on a small padded example, forward and
    backward and for a single query: a clause about the first difference or the error, None if everything matches."""
    generator = torch.Generator().manual_seed(0)
    sizes = kind.head_dim, kind.head_dim, kind.value_dim, kind.value_dim
    drawn = [torch.randn(1, HEADS, LENGTH, size, generator=generator).to(kind.device, kind.dtype) for size in sizes]
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(kind.device.type, enabled=False):
            exact = _results(_eager, [x.float() for x in drawn])
            fused = _results(attend, drawn)
    except Exception as error:  # compilers, drivers and launches raise errors of many types
        first_line = str(error).strip().partition("\n")[0]
        return f"it failed with {type(error).__name__} ({first_line})"
    allowed = ROUNDINGS * torch.finfo(kind.dtype).eps
    for name, expected in exact.items():
        difference = (fused[name].float() - expected).norm()
        relative = (difference / expected.norm()).item()
        if not relative <= allowed:
            return f"its {name} differs from the eager path by {relative:.1%}; rounding explains {allowed:.1%}"
    return None


def _eager(*inputs: Any) -> Tensor:
    return eager_attention(*inputs)[0]


def _results(attend: Callable[..., Tensor], drawn: list[Tensor]) -> dict[str, Tensor]:
    query, key, value, upstream = (x.clone().requires_grad_() for x in drawn)
    keep = (torch.arange(LENGTH, device=query.device) < LENGTH - 7)[None, None, None]
    call = AttentionCall(negative_mass=0.5, scaling=query.shape[3] ** -0.5)
    context = attend(query, key, value, keep, call)
    gradients = torch.autograd.grad(context, (query, key, value), upstream)
    of_one_query = attend(query[:, :, :1], key, value, keep, call)
    names = "output", "query gradient", "key gradient", "value gradient", "output for one query"
    return dict(zip(names, (context, *gradients, of_one_query), strict=True))
