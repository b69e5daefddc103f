"""Compares the Triton kernels with the eager path on this machine, once per kind of call, before "auto" uses them."""

from collections.abc import Callable
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
    """What the compiled code depends on that the options of a model decide, so that the example needs no other code.

    In a graph, which may be for several lengths, `few` is true for a single query only.
    """

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    value_dim: int
    signed: bool = True
    keep: str | None = "per key"  # or "per query"
    bias: torch.dtype | None = None
    capped: bool = False
    shift: str | None = None  # of a negative mass below 1, "one" or "per head"
    dropped: bool = False
    causal: bool = False
    window: bool = False
    few: bool = False
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
    mass, bias, differentiable = call.negative_mass, call.bias, torch.is_grad_enabled()
    plain = not (call.banded or call.dropout)
    rows = query.shape[2]
    # a graph may be for several lengths, and must not depend on them
    few = rows == 1 if torch.compiler.is_compiling() else rows * query.shape[1] <= FEW_ROWS * key.shape[1]
    few = few and plain
    per_key = keep is not None and (keep.shape[2] == 1 or keep.stride(2) == 0) and not (few and keep.shape[1] > 1)
    return Kind(
        query.device, query.dtype, query.shape[3], value.shape[3], call.activation == "tanhmax",
        None if keep is None else "per key" if per_key else "per query",
        None if bias is None else bias.dtype, call.softcap is not None,
        "per head" if isinstance(mass, Tensor) else None if mass == 1 else "one",
        call.dropout > 0, call.causal, call.window is not None, few,
        differentiable and any(isinstance(x, Tensor) and x.requires_grad for x in (query, key, value, bias, mass)),
        differentiable and bias is not None and bias.requires_grad,
    )  # fmt: skip


@torch.compiler.assume_constant_result
def _agrees_in_graph(kind: Kind) -> bool:
    return agrees(kind)


@lru_cache(None)  # apart from the function above: torch.compile traces one that is both cached and marked constant
def agrees(kind: Kind) -> bool:
    """`fused_agrees` for calls of this kind."""
    if not _supported(kind):
        return False
    from hf_bidir.kernels.fused_attention import fused_attention

    if found := difference_from_eager(fused_attention, kind):
        logger.warning(
            f"The fused kernel of signed attention is not used for {kind.dtype}, head dimension {kind.head_dim}, on "
            f'{kind.device}: {found}. Another exact implementation is used; attn_implementation="fused" uses the '
            "kernel anyway."
        )
    return not found


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
    device, dtype = kind.device, kind.dtype
    drawn, keep, call = example_of(kind)

    def computed(precision: torch.dtype, path: Callable[..., Tensor]) -> list[Tensor]:
        *inputs, weight = (x.to(precision, copy=True) for x in drawn)
        context = path(*(x.requires_grad_(kind.gradient) for x in inputs))
        return [context, *(torch.autograd.grad((context * weight).sum(), inputs) if kind.gradient else ())]

    def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return eager_attention(query, key, value, keep, call, factors=torch.ones((), device=device))[0]

    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            exact = computed(torch.float32, eager)
            fused = computed(dtype, lambda query, key, value: attend(query, key, value, keep, call))
    except Exception as error:  # compilers, drivers and launches raise errors of many types
        return f"it failed with {type(error).__name__} ({str(error).strip().partition(chr(10))[0]})"
    names, allowed = ("output", "query gradient", "key gradient", "value gradient"), ROUNDINGS * torch.finfo(dtype).eps
    for name, expected, got in zip(names, exact, fused, strict=False):
        relative = ((got.float() - expected).norm() / expected.norm()).item()
        if not relative <= allowed:
            return f"its {name} differs from the eager path by {relative:.1%}; rounding explains {allowed:.1%}"
    return None


def example_of(kind: Kind) -> tuple[list[Tensor], Tensor | None, AttentionCall]:
    """Query, key, value and the gradient of the context, rounded to the dtype; a keep-mask; and the options."""
    generator, device = torch.Generator().manual_seed(0), kind.device
    rows, columns = 1 if kind.few else LENGTH, torch.arange(LENGTH)
    shapes = ((rows, kind.head_dim), (LENGTH, kind.head_dim), (LENGTH, kind.value_dim), (rows, kind.value_dim))
    drawn = [torch.randn(1, HEADS, *shape, generator=generator).to(device, kind.dtype) for shape in shapes]
    keep = (columns < LENGTH - 7).expand(1, 1, 1 if kind.keep == "per key" else rows, LENGTH)
    if kind.keep == "per query":
        keep = keep & ((columns + torch.arange(rows)[:, None]) % 3 > 0)
    bias, mass = None, None if kind.shift is None else 0.5
    if kind.bias is not None:
        bias = torch.randn(1, HEADS, rows, LENGTH, generator=generator).to(device, kind.bias)
        bias.requires_grad_(kind.bias_gradient)
    call = AttentionCall(
        activation="tanhmax" if kind.signed else "softmax",
        negative_mass=torch.full((HEADS, 1, 1), 0.5, device=device) if kind.shift == "per head" else mass or 1.0,
        scaling=kind.head_dim**-0.5,
        dropout=NO_DROPOUT if kind.dropped else 0.0,
        causal=kind.causal,
        window=LENGTH // 4 if kind.window else None,
        bias=bias,
        softcap=2.0 if kind.capped else None,
    )
    return drawn, None if kind.keep is None else keep.to(device), call
