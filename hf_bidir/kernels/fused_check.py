"""Compares the Triton kernels with the eager path on this machine, once per kind of call, before "auto" uses them."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.utils import logging

from hf_bidir.kernels.fused_path import FEW_ROWS, HAS_COMPILER, HAS_TRITON, HEAD_DIMS
from hf_bidir.modeling.attention_call import AttentionCall
from hf_bidir.modeling.eager_attention import eager_attention

logger = logging.get_logger(__name__)

LENGTH, HEADS = 80, 2  # size of the example; the length is above most block sizes and a multiple of none
ROUNDINGS = 8  # accepted relative difference, in rounding errors of the dtype
NO_DROPOUT = 1e-9  # a probability that compiles dropout without dropping any of the example's coefficients


class Kind(NamedTuple):
    """What the compiled code depends on that the options of a model decide, so that the example needs no other code."""

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    value_dim: int
    keep: str | None = "per key"  # or "per query"
    bias: torch.dtype | None = None
    capped: bool = False
    shifted: bool = False  # by a negative mass below 1
    dropped: bool = False
    causal: bool = False
    window: bool = False
    few: bool = False  # in a graph, which may be for several lengths, only for a single query
    gradient: bool = True
    bias_gradient: bool = False


def fused_agrees(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall) -> bool:
    """Whether "auto" may use the kernels for this call: half precision on an NVIDIA GPU of compute capability 8 or
    more, if they match the eager path there. Logs one warning with the reason if they do not."""
    if not query.dtype == key.dtype == value.dtype:
        return False
    kind = kind_of(query, key, value, keep, call)
    return _agrees_in_graph(kind) if torch.compiler.is_compiling() else agrees(kind)


def kind_of(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall) -> Kind:
    rows, bias = query.shape[2], call.bias
    few = rows == 1 if torch.compiler.is_compiling() else rows * query.shape[1] <= FEW_ROWS * key.shape[1]
    few = few and not (call.banded or call.dropout)
    per_key = keep is not None and (keep.shape[2] == 1 or keep.stride(2) == 0) and not (few and keep.shape[1] > 1)
    inputs = [x for x in (query, key, value, bias, call.negative_mass) if isinstance(x, Tensor)]
    return Kind(
        query.device,
        query.dtype,
        query.shape[3],
        value.shape[3],
        None if keep is None else "per key" if per_key else "per query",
        None if bias is None else bias.dtype,
        call.softcap is not None,
        isinstance(call.negative_mass, Tensor) or call.negative_mass != 1,
        call.dropout > 0,
        call.causal,
        call.window is not None,
        few,
        torch.is_grad_enabled() and any(x.requires_grad for x in inputs),
        torch.is_grad_enabled() and bias is not None and bias.requires_grad,
    )


@torch.compiler.assume_constant_result
def _agrees_in_graph(kind: Kind) -> bool:
    return agrees(kind)


@lru_cache(None)  # apart from the function above: torch.compile traces one that is both cached and marked constant
def agrees(kind: Kind) -> bool:
    """`fused_agrees` for calls of this kind."""
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
    """Compare `fused_attention`, or what stands in for it, with the eager path on a small example of this kind, also
    backward where it has gradients: a clause about the first difference or the error, None if everything matches."""
    *states, upstream = _states_of(kind)
    keep, call = _mask_of(kind), _call_of(kind)

    def results(path: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        inputs = [x.to(dtype, copy=True).requires_grad_(kind.gradient) for x in states]
        context = path(*inputs)
        if not kind.gradient:
            return [context]
        return [context, *torch.autograd.grad(context, inputs, upstream.to(dtype))]

    def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return eager_attention(query, key, value, keep, replace(call, dropout=0.0))[0]

    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(kind.device.type, enabled=False):
            exact = results(eager, torch.float32)
            fused = results(lambda *inputs: attend(*inputs, keep, call), kind.dtype)
    except Exception as error:  # compilers, drivers and launches raise errors of many types
        first_line = str(error).strip().partition("\n")[0]
        return f"it failed with {type(error).__name__} ({first_line})"
    allowed = ROUNDINGS * torch.finfo(kind.dtype).eps
    names = "output", "query gradient", "key gradient", "value gradient"
    for name, expected, got in zip(names, exact, fused, strict=False):
        relative = ((got.float() - expected).norm() / expected.norm()).item()
        if not relative <= allowed:
            return f"its {name} differs from the eager path by {relative:.1%}; rounding explains {allowed:.1%}"
    return None


def _states_of(kind: Kind) -> list[Tensor]:
    """Query, key, value and the gradient of the context, rounded to the dtype."""
    generator, rows = torch.Generator().manual_seed(0), 1 if kind.few else LENGTH
    sizes = (rows, kind.head_dim), (LENGTH, kind.head_dim), (LENGTH, kind.value_dim), (rows, kind.value_dim)
    return [torch.randn(1, HEADS, *size, generator=generator).to(kind.device, kind.dtype) for size in sizes]


def _mask_of(kind: Kind) -> Tensor | None:
    if kind.keep is None:
        return None
    rows, columns = torch.arange(1 if kind.few else LENGTH)[:, None], torch.arange(LENGTH)
    padding = (columns < LENGTH - 7)[None, None, None]
    keep = padding if kind.keep == "per key" else padding & ((columns + rows) % 3 > 0)
    return keep.to(kind.device)


def _call_of(kind: Kind) -> AttentionCall:
    bias = None
    if kind.bias is not None:
        generator = torch.Generator().manual_seed(1)
        bias = torch.randn(1, HEADS, 1 if kind.few else LENGTH, LENGTH, generator=generator)
        bias = bias.to(kind.device, kind.bias).requires_grad_(kind.bias_gradient)
    return AttentionCall(
        negative_mass=0.5 if kind.shifted else 1.0,
        scaling=kind.head_dim**-0.5,
        dropout=NO_DROPOUT if kind.dropped else 0.0,
        causal=kind.causal,
        window=LENGTH // 4 if kind.window else None,
        bias=bias,
        softcap=2.0 if kind.capped else None,
    )
