"""The inputs of the fused kernels, and the arguments that the kernels of one call share."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .attention_inputs import FEW_ROWS, INTERPRETED
from .fused_blocks import triton
from .fused_launch import Variant

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
    """The arguments that the kernels of one call share, and what their compiled code depends on."""

    def __init__(self, given: Inputs, *others: Tensor):
        query, key, value, keep, bias, shifts, seed, starts, starts_k, *_, dropout, causal, window = given
        batch, heads, queries, head_dim = query.shape
        keys, value_dim, dtype = key.shape[2], value.shape[3], query.dtype
        # the kernels support any strides but that of the last dimension
        self.tensors = [x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value, *others)]
        strides = [stride for x in self.tensors for stride in x.stride()[:3]]
        bits = 0
        for number in (*strides, *[x.data_ptr() // x.element_size() for x in self.tensors]):
            bits |= number
        unit = 1 if bits % UNIT else UNIT
        per_key = keep is not None and (keep.shape[2] == 1 or keep.stride(2) == 0)
        mask, mask_strides, bias_strides = None, (0, 0, 0), (0, 0, 0)
        if keep is not None:
            keep = keep if keep.stride(3) == 1 else keep.contiguous()
            mask, mask_strides = keep.view(torch.uint8), strides_of(keep)
        if bias is not None:
            bias = bias if bias.stride(3) == 1 else bias.contiguous()
            bias_strides = strides_of(bias)
        self.optional = (mask, bias, shifts, seed, starts, starts_k)
        self.strides = [stride // unit for stride in strides] + [*mask_strides, *bias_strides]
        self.heads = (heads, heads // key.shape[1])
        self.sequences = heads * (batch if starts is None else len(starts) - 1)
        cap, shift = given.cap, given.shift * LOG2_E
        cap = None if cap is None else cap * LOG2_E
        self.numbers = (queries, keys, given.scaling * LOG2_E, shift, cap, dropout, window)
        plain = seed is None and starts is None and not causal and window is None
        self.few_rows = plain and queries * self.heads[1] <= FEW_ROWS
        if self.few_rows and keep is not None and keep.shape[1] > 1:
            per_key = False  # the decode kernel holds several heads in a block
        self.variant = Variant(
            head_dim, value_dim, triton.next_power_of_2(head_dim), triton.next_power_of_2(value_dim), given.signed,
            dtype == torch.float32, not given.signed or dtype != torch.bfloat16, causal, per_key,
            shifts is not None or shift != 0, unit, _precision(dtype),
        )  # fmt: skip
        bias_dtype = None if bias is None else bias.dtype
        self.kinds = (
            query.device, dtype, bias_dtype, mask is None, shifts is None, seed is None, starts is None, cap is None,
            window is None,
        )  # fmt: skip


def strides_of(x: Tensor) -> tuple[int, ...]:
    """The first three strides of a mask or a bias, 0 where it is broadcast."""
    return tuple(0 if size == 1 else stride for size, stride in zip(x.shape[:3], x.stride(), strict=False))


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
