"""Arguments of the Triton kernels for one call, and the key of their compiled code."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .fused_blocks import TF32, TF32X3, WIDE, Code, Pairs, Problem, Rows, tl
from .fused_path import FEW_ROWS, INTERPRETED

LOG2_E = math.log2(math.e)
UNIT = 8  # numbers; rows that begin at multiples of it can be loaded 16 bytes at a time


class Inputs(NamedTuple):
    """The inputs of the operators: those of `fused_attention`, with the numbers of the `AttentionCall`.

    `shifts` `[heads]` is added to the scores and stands for the negative mass.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor | None
    bias: Tensor | None
    shifts: Tensor | None
    seed: Tensor | None
    scaling: float
    cap: float | None
    dropout: float
    causal: bool
    window: int | None


class Prepared(NamedTuple):
    """What the kernels of one call share."""

    problem: Problem
    upstream: Rows | None  # the gradient of the context
    code: Code
    kinds: tuple  # the device, dtypes, and which optional arguments are None


def prepared(inputs: Inputs, upstream: Tensor | None = None) -> Prepared:
    """The arguments of the kernels for checked inputs."""
    problem = _problem(inputs)
    grad_context = None if upstream is None else rows_of(upstream)
    optional = problem.keep, problem.shifts, problem.seed, problem.cap, problem.window
    kinds = (
        inputs.query.device,
        inputs.query.dtype,
        None if inputs.bias is None else inputs.bias.dtype,
        *[argument is None for argument in optional],
    )
    return Prepared(problem, grad_context, _code(inputs, problem, grad_context), kinds)


def _problem(inputs: Inputs) -> Problem:
    _, heads, queries, _ = inputs.query.shape
    key_heads, keys = inputs.key.shape[1:3]
    return Problem(
        rows_of(inputs.query),
        rows_of(inputs.key),
        rows_of(inputs.value),
        None if inputs.keep is None else pairs_of(inputs.keep.view(torch.uint8)),
        pairs_of(inputs.bias),
        inputs.shifts,
        inputs.seed,
        heads,
        heads // key_heads,
        queries,
        keys,
        inputs.scaling * LOG2_E,
        None if inputs.cap is None else inputs.cap * LOG2_E,
        None if inputs.seed is None else inputs.dropout,
        inputs.window,
    )


def _code(inputs: Inputs, problem: Problem, upstream: Rows | None) -> Code:
    head_size = inputs.query.shape[3]
    value_size = inputs.value.shape[3]
    dtype = inputs.query.dtype
    places, widest = head_size | value_size, 0
    for tensor in (problem.query, problem.key, problem.value, upstream or problem.query):
        pointer, *strides = tensor
        places |= pointer.data_ptr() // pointer.element_size() | strides[0] | strides[1] | strides[2]
        widest = max(widest, *strides)
    for pairs in (problem.keep, problem.bias):
        widest = widest if pairs is None else max(widest, *pairs[1:])
    keep = inputs.keep
    per_key = keep is not None and (keep.shape[2] == 1 or keep.stride(2) == 0)
    # one block of the decode kernel computes a few queries of all heads that share keys
    rows = problem.queries * problem.groups
    few = rows <= FEW_ROWS and inputs.seed is None and not inputs.causal and inputs.window is None
    if few and keep is not None:
        per_key = per_key and keep.shape[1] == 1
    return Code(
        head_size,
        value_size,
        power_of_2(head_size),
        power_of_2(value_size),
        exact=dtype == torch.float32,
        levelled=dtype != torch.bfloat16,
        causal=inputs.causal,
        per_key=per_key,
        unit=1 if places % UNIT else UNIT,
        wide=widest >= 2**31,
        precision=_precision(dtype).value,
        rows=power_of_2(max(16, rows)) if few else 0,
    )


def _precision(dtype: torch.dtype) -> tl.constexpr:
    """The precision of matrix products; of fp32 as set in torch.

    Three products in tf32 are as exact as fp32, and run on the tensor cores.
    """
    if dtype != torch.float32:
        return WIDE if INTERPRETED and dtype == torch.bfloat16 else TF32
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # reading allow_tf32 is an error once this was set
        return TF32 if matmul.fp32_precision == "tf32" else TF32X3
    return TF32 if matmul.allow_tf32 else TF32X3


def power_of_2(size: int) -> int:
    """The smallest power of two that is not below a size."""
    return 1 << (size - 1).bit_length()


def rows_of(x: Tensor) -> Rows:
    x = x if x.stride(3) == 1 else x.contiguous()
    per_example, per_head, per_row, _ = x.stride()
    return Rows(x, per_example, per_head, per_row)


def pairs_of(x: Tensor | None) -> Pairs | None:
    """A mask or a bias, if there is one, with a stride of 0 where it is broadcast."""
    if x is None:
        return None
    x = x if x.stride(3) == 1 else x.contiguous()
    strides = (stride if size > 1 else 0 for size, stride in zip(x.shape[:3], x.stride(), strict=False))
    return Pairs(x, *strides)
