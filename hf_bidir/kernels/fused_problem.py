"""The inputs of the fused kernels, and the arguments that the kernels of one call share."""

import math
from functools import reduce
from operator import or_
from typing import NamedTuple

import torch
from torch import Tensor

from hf_bidir.kernels.fused_path import FEW_ROWS, INTERPRETED

LOG2_E = math.log2(math.e)
UNIT = 8  # numbers; rows that begin at multiples of it can be loaded 16 bytes at a time


class Inputs(NamedTuple):
    """The inputs of the kernels: tensors, boundaries of packed examples, and the numbers of `AttentionCall`.

    The shift of the scores that stands for the negative mass is `shifts` `[heads]`, or `shift` for all heads.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor | None
    bias: Tensor | None
    shifts: Tensor | None
    seed: Tensor | None
    cu_seqlens: Tensor | None
    cu_seqlens_k: Tensor | None
    max_seqlen: int
    max_seqlen_k: int
    signed: bool
    scaling: float
    shift: float
    cap: float | None
    dropout: float
    causal: bool
    window: int | None


class Problem:
    """The arguments that the kernels of one call share, and what their compiled code depends on, from `Inputs` and, in
    the backward pass, the gradient of the context. Without loops, because every call makes one or two of these."""

    def __init__(self, inputs: tuple, upstream: Tensor | None = None):
        given = Inputs._make(inputs)
        query, key, value, starts = given.query, given.key, given.value, given.cu_seqlens
        (batch, heads, queries, head_dim), value_dim = query.shape, value.shape[3]
        key_heads, keys = key.shape[1:3]
        # the kernels support any strides but that of the last dimension
        query = query if query.stride(3) == 1 else query.contiguous()
        key = key if key.stride(3) == 1 else key.contiguous()
        value = value if value.stride(3) == 1 else value.contiguous()
        strides, size = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3]), query.element_size()
        bits = (query.data_ptr() | key.data_ptr() | value.data_ptr()) // size
        if upstream is not None:
            upstream = upstream if upstream.stride(3) == 1 else upstream.contiguous()
            strides, bits = (*strides, *upstream.stride()[:3]), bits | upstream.data_ptr() // size
        unit = 1 if reduce(or_, strides, bits) % UNIT else UNIT
        keep, bias = given.keep, given.bias
        per_key = keep is not None and (keep.shape[2] == 1 or keep.stride(2) == 0)
        mask, mask_strides, bias_strides = None, NO_STRIDES, NO_STRIDES
        if keep is not None:
            keep = keep if keep.stride(3) == 1 else keep.contiguous()
            mask, mask_strides = keep.view(torch.uint8), strides_of(keep)
        if bias is not None:
            bias = bias if bias.stride(3) == 1 else bias.contiguous()
            bias_strides = strides_of(bias)
        self.states, self.upstream = (query, key, value), upstream
        self.optional = (mask, bias, given.shifts, given.seed, starts, given.cu_seqlens_k)
        self.strides = (*strides, *mask_strides, *bias_strides)
        groups = heads // key_heads
        self.head_counts, self.lengths = (heads, groups), (given.max_seqlen, given.max_seqlen_k)
        self.sequences = heads * (batch if starts is None else len(starts) - 1)
        cap = None if given.cap is None else given.cap * LOG2_E
        dropout = 0.0 if given.seed is None else given.dropout  # never an int: the code would not be compiled for it
        self.numbers = (queries, keys, given.scaling * LOG2_E, given.shift * LOG2_E, cap, dropout, given.window)
        plain = given.seed is None and starts is None and not given.causal and given.window is None
        self.few_rows = plain and queries * groups <= FEW_ROWS
        if self.few_rows and keep is not None and keep.shape[1] > 1:
            per_key = False  # the kernel for few queries holds several heads in a block
        dtype, signed = query.dtype, given.signed
        shifted = given.shifts is not None or given.shift != 0
        self.variant = (  # fields of `Variant`
            head_dim, value_dim, 1 << (head_dim - 1).bit_length(), 1 << (value_dim - 1).bit_length(), signed,
            dtype == torch.float32, not signed or dtype != torch.bfloat16, given.causal, per_key, shifted, unit,
            "tf32" if dtype == torch.float16 else _precision(dtype),
        )  # fmt: skip
        self.kinds = (
            query.device, dtype, None if bias is None else bias.dtype, mask is None, given.shifts is None,
            given.seed is None, starts is None, cap is None, given.window is None, wide(self.strides),
        )  # fmt: skip


NO_STRIDES = (0, 0, 0)


def wide(strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides if one needs 64 bits: code is compiled for the widths of integers; else None."""
    return strides if max(strides) >= 2**31 else None


def strides_of(x: Tensor) -> tuple[int, int, int]:
    """The first three strides of a mask or a bias, 0 where it is broadcast."""
    (batch, heads, rows, _), (stride_z, stride_h, stride_n, _) = x.shape, x.stride()
    return stride_z if batch > 1 else 0, stride_h if heads > 1 else 0, stride_n if rows > 1 else 0


def _precision(dtype: torch.dtype) -> str:
    """The precision of matrix products: for fp32 as set in torch; "wide" for bf16 in the interpreter, which lacks it.

    "tf32x3", three products in tf32, is as exact as fp32 and runs on the tensor cores.
    """
    if dtype != torch.float32:
        return "wide" if INTERPRETED and dtype == torch.bfloat16 else "tf32"
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # reading allow_tf32 is an error once this was set
        allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    else:
        allowed = torch.backends.cuda.matmul.allow_tf32
    return "tf32" if allowed else "tf32x3"
