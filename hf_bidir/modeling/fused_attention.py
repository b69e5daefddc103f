"""Signed attention as one torch operator over the Triton kernels: checks, launches, gradients and fake tensors.

Forward and backward are `torch.library` operators, so that `torch.compile(fullgraph=True)` and `torch.export` see
through them. Memory beyond inputs and outputs is linear in the length.
"""

import math
import re
from typing import NamedTuple

import torch
from torch import Tensor

from .attention_call import AttentionCall, attention_call
from .attention_inputs import HEAD_DIMS, INTERPRETED, check_shapes
from .fused_blocks import triton
from .fused_kernels import forward_kernel, key_value_gradient_kernel, query_gradient_kernel

ELSEWHERE = 'use implementation="auto", or in a model attn_implementation="sdpa"'
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Of this module, not of the package: a checkpoint's own copy of the file must not replace the operators of another.
NAMESPACE = re.sub(r"\W", "_", __name__)


class Packed(NamedTuple):
    """Where examples begin and end whose queries and keys are joined in tensors `[1, heads, total, head_dim]`.

    `cu_seqlens` and `cu_seqlens_k` are int32, `[examples + 1]`: 0, then where every example ends; `max_seqlen` and
    `max_seqlen_k` are the lengths of the longest, in queries and in keys.
    """

    cu_seqlens: Tensor
    cu_seqlens_k: Tensor
    max_seqlen: int
    max_seqlen_k: int


def packed_examples(
    query: Tensor,
    key: Tensor,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen: int | None = None,
    max_seqlen_k: int | None = None,
) -> Packed:
    """`Packed` from what a caller knows; ValueError where it cannot be the boundaries of `query` and `key`."""
    if cu_seqlens_k is None:
        if max_seqlen_k is not None or key.shape[2] != query.shape[2]:
            raise ValueError(
                f"without cu_seqlens_k the keys have the queries' boundaries; got {key.shape[2]} keys for "
                f"{query.shape[2]} queries and max_seqlen_k={max_seqlen_k}."
            )
        cu_seqlens_k, max_seqlen_k = cu_seqlens, max_seqlen
    for name, starts in (("cu_seqlens", cu_seqlens), ("cu_seqlens_k", cu_seqlens_k)):
        _check_starts(name, starts, len(cu_seqlens), query.device)
    for name, longest in (("max_seqlen", max_seqlen), ("max_seqlen_k", max_seqlen_k)):
        if longest is not None and (isinstance(longest, float) or longest < 1):
            raise ValueError(f"{name} must be a whole number of at least 1, got {longest}.")
    longest = _longest(cu_seqlens, query.shape[2], "cu_seqlens") if max_seqlen is None else max_seqlen
    if max_seqlen_k is None:
        same = cu_seqlens_k is cu_seqlens
        max_seqlen_k = longest if same else _longest(cu_seqlens_k, key.shape[2], "cu_seqlens_k")
    return Packed(cu_seqlens.contiguous(), cu_seqlens_k.contiguous(), longest, max_seqlen_k)


def _check_starts(name: str, starts: Tensor, count: int, device: torch.device) -> None:
    if not isinstance(starts, Tensor):
        raise ValueError(f"{name} must be an int32 tensor [examples + 1], got a {type(starts).__name__}.")
    if starts.dtype != torch.int32 or starts.dim() != 1 or len(starts) != count or count < 2:
        raise ValueError(
            f"{name} must be int32 [examples + 1], as many as the other boundaries, {count}; got "
            f"{tuple(starts.shape)} {starts.dtype} (.int() makes int32)."
        )
    if starts.device != device:
        raise ValueError(f"{name} must lie on {device} as the queries do, got {starts.device}; .to() moves it.")


def _longest(starts: Tensor, total: int, name: str) -> int:
    """The length of the longest example; ValueError where the boundaries do not rise from 0 to `total`."""
    lengths = starts.diff()
    first, last, shortest, longest = torch.stack([starts[0], starts[-1], lengths.min(), lengths.max()]).tolist()
    if first != 0 or last != total or shortest < 0:
        raise ValueError(f"{name} must rise from 0 to {total}, got {starts.tolist()}.")
    return longest


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None = None,
    call: AttentionCall | None = None,
    packed: Packed | None = None,
) -> Tensor:
    """TanhMax or softmax attention in one kernel, differentiable once in query, key, value and the negative mass.

    Args:
        query: `[batch, heads, queries, head_dim]`, fp16, bf16 or fp32; `key` and `value` have `keys` in place of
            `queries` and may have fewer heads; the values may have another last size. Both last sizes lie in 16 to 256.
        keep: boolean, `[batch or 1, heads or 1, queries or 1, keys]`, True = attend. With one row for all queries,
            the blocks behind the last kept key cost nothing.
        call: by default that of TanhMax; a window and causality cost what is inside of them alone.
        packed: examples of different lengths without padding; `keep` must be None.

    Returns:
        The context, `[batch, heads, queries, value_dim]`, in the dtype of `query`. Zeros where a query may attend to
        nothing, and NaN where a score is NaN, infinite or beyond 1e9 (in softmax NaN or +inf).

    Raises:
        ValueError: no GPU, shapes that do not fit, or a size, a dtype or a combination that the kernel cannot take.

    Source: Huang, Yang, Wang 2024 (doi 10.6339/24-JDS1134) for TanhMax; Dao 2023 (arXiv:2307.08691) for the tiling.
    """
    check_shapes(query, key, value, keep)
    call = attention_call(query, key) if call is None else call
    shift, scaling, window = call.shift(query), call.scaling, call.window
    _check(query, key, value, keep, packed)
    if scaling < 0:  # the kernel takes the highest product of a row for that of the highest score
        query, scaling = -query, -scaling
    elif scaling == 0:  # and -inf * 0 would be NaN
        query, scaling = query * 0, 1.0
    shift = None if shift is None else shift.float().flatten()
    # As a tensor, and not as a number, so that a compiled graph draws a new one at every call.
    seed = torch.randint(2**62, (1,), device=query.device) if call.dropout > 0 else None
    starts = (None, None, query.shape[2], key.shape[2]) if packed is None else packed
    if window is not None:
        window = min(window, max(query.shape[2], key.shape[2]))  # larger numbers would leave the range of int32
    numbers = (call.activation == "tanhmax", scaling, call.dropout, call.causal, window)
    return _forward(query, key, value, keep, shift, seed, *starts, *numbers)[0]


@torch.library.custom_op(f"{NAMESPACE}::signed_attention", mutates_args=())
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None,
    shift: Tensor | None,
    seed: Tensor | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen: int,
    max_seqlen_k: int,
    signed: bool,
    scaling: float,
    dropout: float,
    causal: bool,
    window: int | None,
) -> tuple[Tensor, Tensor]:
    """The context, and of every row `[batch, heads, queries]` log2(sum 2 cosh), negated where all scores are small."""
    query, key, value = (_dense_rows(x) for x in (query, key, value))
    context, normaliser = _new_context(query, value, cu_seqlens), _new_normaliser(query, cu_seqlens)
    launch = _Launch(
        query, key, value, keep, shift, seed, cu_seqlens, cu_seqlens_k, signed, scaling, dropout, causal, window
    )  # fmt: skip
    launch(forward_kernel, "BLOCK_M", max_seqlen, (query, key, value, context), (normaliser,))
    return context, normaliser


@torch.library.custom_op(f"{NAMESPACE}::signed_attention_backward", mutates_args=())
def _backward(
    grad_context: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Tensor,
    normaliser: Tensor,
    keep: Tensor | None,
    shift: Tensor | None,
    seed: Tensor | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen: int,
    max_seqlen_k: int,
    signed: bool,
    scaling: float,
    dropout: float,
    causal: bool,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key and value, and of the shift of every row, `[batch, heads, queries]`."""
    query, key, value, grad_context = (_dense_rows(x) for x in (query, key, value, grad_context))
    grad_query, grad_key, grad_value = (_new_gradient(x, cu_seqlens) for x in (query, key, value))
    delta, grad_shift = torch.zeros_like(normaliser), torch.zeros_like(normaliser)
    launch = _Launch(
        query, key, value, keep, shift, seed, cu_seqlens, cu_seqlens_k, signed, scaling, dropout, causal, window
    )  # fmt: skip
    launch(
        query_gradient_kernel, "BLOCK_M", max_seqlen,
        (query, key, value, context, grad_context, grad_query), (normaliser, delta, grad_shift),
    )  # fmt: skip
    small = (normaliser < 0).any(-1) if signed and query.dtype != torch.float32 else None
    launch(
        key_value_gradient_kernel, "BLOCK_N", max_seqlen_k,
        (query, key, value, grad_context, grad_key, grad_value), (normaliser, delta, small),
    )  # fmt: skip
    return grad_query, grad_key, grad_value, grad_shift


@_forward.register_fake
def _(query, key, value, keep, shift, seed, cu_seqlens, *_):
    return _new_context(query, value, cu_seqlens), _new_normaliser(query, cu_seqlens)


@_backward.register_fake
def _(grad_context, query, key, value, context, normaliser, keep, shift, seed, cu_seqlens, *_):
    return *(_new_gradient(x, cu_seqlens) for x in (query, key, value)), torch.empty_like(normaliser)


def _save(ctx, inputs, output) -> None:
    query, key, value, keep, shift, seed, cu_seqlens, cu_seqlens_k, *ctx.numbers = inputs
    ctx.save_for_backward(query, key, value, *output, keep, shift, seed, cu_seqlens, cu_seqlens_k)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, grad_context, _):
    *gradients, of_rows = _backward(grad_context, *ctx.saved_tensors, *ctx.numbers)
    grad_shift = of_rows.sum((0, 2)) if ctx.needs_input_grad[4] else None
    return *gradients, None, grad_shift, *[None] * 10


def _no_second_gradients(ctx, *_):
    raise RuntimeError('fused attention has first derivatives only; use "eager" for second ones.')


_forward.register_autograd(_gradients, setup_context=_save)
_backward.register_autograd(_no_second_gradients)


class _Launch:
    """Starts kernels on one problem: what they are told alike."""

    def __init__(
        self, query, key, value, keep, shift, seed, cu_seqlens, cu_seqlens_k, signed, scaling, dropout, causal, window
    ):
        batch, heads, queries, head_dim = query.shape
        self.examples = batch if cu_seqlens is None else len(cu_seqlens) - 1
        bounds = None if keep is None or keep.shape[2] > 1 else _bounds(keep)
        mask = None if keep is None else keep.view(torch.uint8).expand(batch, heads, -1, -1)
        shift = None if shift is None else shift * math.log2(math.e)
        self.pointers = (mask, bounds, shift, seed, cu_seqlens, cu_seqlens_k)
        self.mask_strides = (0,) * 4 if mask is None else mask.stride()
        self.bounds_strides = (0,) * 2 if bounds is None else bounds.expand(batch, heads, -1).stride()[:2]
        self.heads, self.rows = (heads, heads // key.shape[1]), (queries, key.shape[2])
        self.numbers = (scaling * math.log2(math.e), dropout, 1 / (1 - dropout), window)
        self.options = {
            "HEAD": head_dim,
            "VALUE": value.shape[3],
            "HEAD_PAD": triton.next_power_of_2(head_dim),
            "VALUE_PAD": triton.next_power_of_2(value.shape[3]),
            "SIGNED": signed,
            "EXACT": query.dtype == torch.float32,
            "CAUSAL": causal,
            "PRECISION": _precision(query.dtype),
            "enable_fp_fusion": True,  # a product and a sum in one instruction; Triton 3.10 will no longer by itself
        }

    def __call__(self, kernel, block: str, longest: int, tensors: tuple, of_rows: tuple) -> None:
        """Run a kernel on every block of `longest` rows of every head (of queries, or of keys) of every example."""
        places = self.examples * (self.heads[0] if block == "BLOCK_M" else self.heads[0] // self.heads[1])
        if places * longest == 0:
            return
        strides = [stride for tensor in tensors for stride in tensor.stride()[:3]]
        length_class = min(longest.bit_length(), 12)
        with torch.cuda.device_of(tensors[0]):  # Triton starts a kernel on the current device
            kernel[lambda meta: (places * triton.cdiv(longest, meta[block]),)](
                *tensors, *of_rows, *self.pointers, *strides, *self.mask_strides, *self.bounds_strides,
                *self.heads, longest, length_class, *self.rows, *self.numbers, **self.options,
            )  # fmt: skip


def _precision(dtype: torch.dtype) -> str:
    """How products are computed: of fp32 as torch computes them, and of bf16 by an interpreter that lacks it.

    Three products of tf32 are as exact as one of fp32, and stay on the tensor cores.
    """
    if dtype != torch.float32:
        return "wide" if INTERPRETED and dtype == torch.bfloat16 else "tf32"
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # to ask in the old way is an error once this was set
        allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    else:
        allowed = torch.backends.cuda.matmul.allow_tf32
    return "tf32" if allowed else "tf32x3"


def _bounds(keep: Tensor) -> Tensor:
    """int32 `[batch or 1, heads or 1, 2]`: how many keys are kept from the first on, and one past the last that is."""
    keep, positions = keep[:, :, 0], torch.arange(keep.shape[3], device=keep.device)
    whole = positions.masked_fill(keep, keep.shape[2]).amin(-1)
    last = (positions + 1).masked_fill(~keep, 0).amax(-1)
    return torch.stack([whole, last], -1).int()


def _dense_rows(x: Tensor) -> Tensor:
    """The kernels step by any stride but over the last dimension."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _new_context(query: Tensor, value: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Laid out as `[batch, queries, heads, value_dim]`, so that a model's merging of the heads needs no copy."""
    batch, heads, queries, _ = query.shape
    new = query.new_empty if cu_seqlens is None else query.new_zeros  # rows of no example keep their zeros
    return new(batch, queries, heads, value.shape[3]).transpose(1, 2)


def _new_normaliser(query: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    if cu_seqlens is None:
        return query.new_empty(query.shape[:3], dtype=torch.float32)
    return query.new_full(query.shape[:3], math.inf, dtype=torch.float32)


def _new_gradient(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    like = torch.empty_like if cu_seqlens is None else torch.zeros_like
    return like(x.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def _check(query, key, value, keep, packed) -> None:
    """Raise ValueError that names what the kernel can take, and what came."""
    tensors = {"query": query, "key": key, "value": value, "keep": keep}
    tensors = {name: x for name, x in tensors.items() if x is not None}
    low, high = HEAD_DIMS
    if query.dtype not in DTYPES or len({query.dtype, key.dtype, value.dtype}) > 1:
        expected = f"needs one dtype, fp16, bf16 or fp32; {ELSEWHERE}"
    elif not all(low <= x.shape[-1] <= high for x in (query, value)):
        expected = f"takes head dimensions from {low} to {high}; {ELSEWHERE}"
    elif packed is not None and keep is not None:
        expected = "takes packed examples without a mask: they have no padding, leave keep out"
    elif len({x.device for x in tensors.values()}) > 1:
        expected = "needs all tensors on one device"
    elif query.device.type != "cuda" and not INTERPRETED:
        expected = f"runs on a GPU; {ELSEWHERE}, which run everywhere"
    elif query.device.type == "cuda" and torch.cuda.get_device_properties(query.device).major < 8:
        expected = f"needs a GPU of compute capability 8 or more; {ELSEWHERE}"
    else:
        return
    # A loop, and only here: torch.compile cannot follow a generator over sizes that it holds as symbols.
    given = [f"{name} {tuple(x.shape)} {x.dtype} on {x.device}" for name, x in tensors.items()]
    raise ValueError(f"fused attention {expected}. Got {', '.join(given)}.")
