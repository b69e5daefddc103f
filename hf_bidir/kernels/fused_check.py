"""Compares the Triton kernels with the eager path on this machine, once per dtype and head dimension, before "auto"
uses them."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.utils import logging

from hf_bidir.kernels.fused_path import HAS_COMPILER, HAS_TRITON, HEAD_DIMS
from hf_bidir.modeling.attention_call import AttentionCall
from hf_bidir.modeling.eager_attention import eager_attention

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
    if not _supported(kind):
        return False
    from hf_bidir.kernels.fused_attention import fused_attention

    difference = difference_from_eager(fused_attention, kind)
    if difference:
        logger.warning(
            f"The fused kernel of signed attention is not used for {kind.dtype}, head dimension {kind.head_dim}, on "
            f'{kind.device}: {difference}. Another exact implementation is used; attn_implementation="fused" uses the '
            "kernel anyway."
        )
    return not difference


def _supported(kind: Kind) -> bool:
    low, high = HEAD_DIMS
    return (
        HAS_TRITON
        and HAS_COMPILER
        and kind.device.type == "cuda"
        and torch.version.hip is None
        and kind.dtype in (torch.float16, torch.bfloat16)
        and low <= kind.head_dim <= high
        and low <= kind.value_dim <= high
        and torch.cuda.get_device_properties(kind.device).major >= 8
    )


def difference_from_eager(attend: Callable[..., Tensor], kind: Kind) -> str | None:
    """Compare `fused_attention`, or what stands in for it, with the eager path on a small padded example, forward and
    backward and for a single query: a clause about the first difference or the error, None if everything matches."""
    generator = torch.Generator().manual_seed(0)
    sizes = (LENGTH, kind.head_dim), (LENGTH, kind.head_dim), (LENGTH, kind.value_dim), (LENGTH, kind.value_dim)
    drawn = [torch.randn(1, HEADS, *size, generator=generator).to(kind.device, kind.dtype) for size in sizes]
    keep = (torch.arange(LENGTH, device=kind.device) < LENGTH - 7)[None, None, None]
    call = AttentionCall(negative_mass=0.5, scaling=kind.head_dim**-0.5)

    def results(path: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        query, key, value, upstream = (x.to(dtype, copy=True).requires_grad_() for x in drawn)
        context = path(query, key, value, keep, call)
        gradients = torch.autograd.grad(context, (query, key, value), upstream)
        with torch.no_grad():
            of_one_query = path(query[:, :, :1], key, value, keep, call)
        return [context, *gradients, of_one_query]

    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(kind.device.type, enabled=False):
            exact = results(lambda *inputs: eager_attention(*inputs)[0], torch.float32)
            fused = results(attend, kind.dtype)
    except Exception as error:  # compilers, drivers and launches raise errors of many types
        first_line = str(error).strip().partition("\n")[0]
        return f"it failed with {type(error).__name__} ({first_line})"
    allowed = ROUNDINGS * torch.finfo(kind.dtype).eps
    names = "output", "query gradient", "key gradient", "value gradient", "output for one query"
    for name, expected, got in zip(names, exact, fused, strict=True):
        relative = ((got.float() - expected).norm() / expected.norm()).item()
        if not relative <= allowed:
            return f"its {name} differs from the eager path by {relative:.1%}; rounding explains {allowed:.1%}"
    return None
