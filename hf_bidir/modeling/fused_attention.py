"""Signed attention around the Triton kernels: checks, launches, gradients, and operators for graphs.

A call launches the kernels directly. In a captured graph, forward and backward are `torch.library` operators, which
`torch.compile(fullgraph=True)` and `torch.export` keep whole; elsewhere an operator would only cost time. Memory beyond
inputs and outputs is linear in the length.
"""

import math
import re
from typing import NamedTuple

import torch
from torch import Tensor

from .attention_call import AttentionCall, attention_call
from .attention_inputs import HEAD_DIMS, INTERPRETED, check_shapes
from .eager_attention import eager_gradients, needs_eager_gradients
from .fused_blocks import triton
from .fused_kernels import forward_kernel, key_value_gradient_kernel, query_gradient_kernel

ALTERNATIVE = 'use implementation="auto", or in a model attn_implementation="sdpa"'
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Unique per module name, so that a checkpoint's copy of this file does not replace the operators of another version.
NAMESPACE = re.sub(r"\W", "_", __name__)


class Packed(NamedTuple):
    """Boundaries of examples whose queries and keys are concatenated in tensors `[1, heads, total, head_dim]`.

    `cu_seqlens` and `cu_seqlens_k` are int32 `[examples + 1]`: 0, then the end of every example. `max_seqlen` and
    `max_seqlen_k` are the largest numbers of queries and of keys in one example.
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
    """`Packed` with missing values filled in; ValueError if they cannot be the boundaries of `query` and `key`."""
    if cu_seqlens_k is None:
        if max_seqlen_k is not None or key.shape[2] != query.shape[2]:
            raise ValueError(
                f"without cu_seqlens_k, cu_seqlens also applies to the keys; got {key.shape[2]} keys for "
                f"{query.shape[2]} queries and max_seqlen_k={max_seqlen_k}. Pass cu_seqlens_k."
            )
        cu_seqlens_k, max_seqlen_k = cu_seqlens, max_seqlen
    for name, starts in (("cu_seqlens", cu_seqlens), ("cu_seqlens_k", cu_seqlens_k)):
        _check_starts(name, starts, len(cu_seqlens), query.device)
    for name, longest in (("max_seqlen", max_seqlen), ("max_seqlen_k", max_seqlen_k)):
        if longest is not None and (isinstance(longest, float) or longest < 1):
            raise ValueError(f"{name} must be an integer of at least 1, got {longest}.")
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
            f"{name} must be int32 [examples + 1], here [{count}] as for the queries and at least [2]; got "
            f"{tuple(starts.shape)} {starts.dtype}. Convert with .int()."
        )
    if starts.device != device:
        raise ValueError(f"{name} must be on {device} like the queries, got {starts.device}; move it with .to().")


def _longest(starts: Tensor, total: int, name: str) -> int:
    """The length of the longest example; ValueError unless the boundaries rise from 0 to `total`."""
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
    """TanhMax or softmax attention in one kernel, differentiable in query, key, value and the negative mass.

    Derivatives beyond the first take the eager path, except with dropout or packed examples, which refuse them.

    Args:
        query: `[batch, heads, queries, head_dim]`, fp16, bf16 or fp32; `key` and `value` have `keys` in place of
            `queries` and may have fewer heads; the values may have another last size. Both last sizes lie in 16 to 256.
        keep: boolean, `[batch or 1, heads or 1, queries or 1, keys]`, True = attend. With one row for all queries,
            blocks of keys after the last kept one are skipped.
        call: TanhMax by default; blocks outside the window or beyond the diagonal are skipped.
        packed: boundaries of examples of different lengths, without padding; `keep` must be None.

    Returns:
        The context, `[batch, heads, queries, value_dim]`, in the dtype of `query`: zeros for a query without kept keys,
        and NaN for a query with a score that is NaN, infinite or beyond 1e9 (for softmax NaN or +inf).

    Raises:
        ValueError: no GPU, shapes that do not fit, or an unsupported size, dtype or combination.

    Source: Huang, Yang, Wang 2024 (doi 10.6339/24-JDS1134) for TanhMax; Dao 2023 (arXiv:2307.08691) for the tiling.
    """
    check_shapes(query, key, value, keep)
    call = attention_call(query, key) if call is None else call
    shift, scaling, window = call.shift(query), call.scaling, call.window
    _check(query, key, value, keep, packed)
    if scaling < 0:  # the kernel assumes that the largest product of a row has the largest score
        query, scaling = -query, -scaling
    elif scaling == 0:  # -inf * 0 would be NaN
        query, scaling = query * 0, 1.0
    shift = None if shift is None else shift.float().flatten()
    # A tensor rather than a number, so that a compiled graph draws a new seed in every call.
    seed = torch.randint(2**62, (1,), device=query.device) if call.dropout > 0 else None
    starts = (None, None, query.shape[2], key.shape[2]) if packed is None else packed
    if window is not None:
        window = min(window, max(query.shape[2], key.shape[2]))  # larger numbers could overflow int32
    numbers = (call.activation == "tanhmax", scaling, call.dropout, call.causal, window)
    inputs = (query, key, value, keep, shift, seed, *starts, *numbers)
    # tensors of other classes, such as fake ones, see an operator; so do graphs
    captured = torch.compiler.is_compiling() or type(query) is not Tensor
    return _operator(*inputs)[0] if captured else _Fused.apply(*inputs)


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
    """The context, and per row `[batch, heads, queries]` log2(sum 2 cosh), negated if all its scores are small."""
    query, key, value = (_dense_rows(x) for x in (query, key, value))
    context, normaliser = _new_context(query, value, cu_seqlens), _new_normaliser(query, cu_seqlens)
    launch = _Launch(
        query, key, value, keep, shift, seed, cu_seqlens, cu_seqlens_k, signed, scaling, dropout, causal, window
    )  # fmt: skip
    launch(forward_kernel, "BLOCK_M", max_seqlen, (query, key, value, context), (normaliser,))
    return context, normaliser


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
    """The gradients of query, key and value, and per row that of the shift, `[batch, heads, queries]`."""
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


_operator = torch.library.custom_op(f"{NAMESPACE}::signed_attention", _forward, mutates_args=())
_backward_operator = torch.library.custom_op(f"{NAMESPACE}::signed_attention_backward", _backward, mutates_args=())


@_operator.register_fake
def _(query, key, value, keep, shift, seed, cu_seqlens, *_):
    return _new_context(query, value, cu_seqlens), _new_normaliser(query, cu_seqlens)


@_backward_operator.register_fake
def _(grad_context, query, key, value, context, normaliser, keep, shift, seed, cu_seqlens, *_):
    return *(_new_gradient(x, cu_seqlens) for x in (query, key, value)), torch.empty_like(normaliser)


def _save(ctx, inputs, output) -> None:
    query, key, value, keep, shift, seed, cu_seqlens, cu_seqlens_k, *ctx.numbers = inputs
    ctx.save_for_backward(query, key, value, *output, keep, shift, seed, cu_seqlens, cu_seqlens_k)


def _save_for_operator(ctx, inputs, output) -> None:
    _save(ctx, inputs, output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, grad_context, _=None, backward=_backward_operator):
    if needs_eager_gradients(grad_context):
        if found := _differentiable_gradients(ctx, grad_context):
            *gradients, grad_shift = found
            return *gradients, None, grad_shift, *[None] * 10
        backward = _backward_operator  # which refuses that
    *gradients, row_gradients = backward(grad_context, *ctx.saved_tensors, *ctx.numbers)
    grad_shift = row_gradients.sum((0, 2)) if ctx.needs_input_grad[4] else None
    return *gradients, None, grad_shift, *[None] * 10


def _differentiable_gradients(ctx, grad_context) -> tuple[Tensor | None, ...] | None:
    """The gradients of query, key, value and shift by the eager path, for `create_graph=True`; None where it cannot
    compute them: it does not know which coefficients were dropped, nor the examples of packed tensors."""
    query, key, value, _, _, keep, shift, seed, cu_seqlens, _ = ctx.saved_tensors
    if seed is not None or cu_seqlens is not None:
        return None
    _, _, signed, scaling, dropout, causal, window = ctx.numbers
    call = AttentionCall("tanhmax" if signed else "softmax", 1.0, scaling, dropout, causal, window)
    per_head = None if shift is None else shift.view(-1, 1, 1)
    return eager_gradients((query, key, value), per_head, keep, call, grad_context)


def _no_second_gradients(ctx, *_):
    raise RuntimeError(
        "fused attention with dropout or with packed examples has only first derivatives; for second ones pass no "
        'dropout, or use "eager".'
    )


_operator.register_autograd(_gradients, setup_context=_save_for_operator)
_backward_operator.register_autograd(_no_second_gradients)


class _Fused(torch.autograd.Function):
    """The same forward and backward without the operators."""

    @staticmethod
    def forward(ctx, *inputs):
        output = _forward(*inputs)
        _save(ctx, inputs, output)
        return output[0]

    @staticmethod
    def backward(ctx, grad_context):
        return _gradients(ctx, grad_context, backward=_backward)


class _Launch:
    """Launches kernels; holds the arguments that all kernels of one call share."""

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
            "enable_fp_fusion": True,  # fused multiply-add, which Triton 3.10 no longer enables by default
        }

    def __call__(self, kernel, block: str, longest: int, tensors: tuple, row_tensors: tuple) -> None:
        """Run a kernel on all blocks of queries (`block="BLOCK_M"`) or keys ("BLOCK_N") of all heads and examples.

        Args:
            longest: rows of the longest example.
            tensors: their first three strides are passed to the kernel as well.
            row_tensors: contiguous tensors with one number per row.
        """
        sequences = self.examples * (self.heads[0] if block == "BLOCK_M" else self.heads[0] // self.heads[1])
        if sequences * longest == 0:
            return
        strides = [stride for tensor in tensors for stride in tensor.stride()[:3]]
        length_class = min(longest.bit_length(), 12)
        with torch.cuda.device_of(tensors[0]):  # Triton launches kernels on the current device
            kernel[lambda meta: (sequences * triton.cdiv(longest, meta[block]),)](
                *tensors, *row_tensors, *self.pointers, *strides, *self.mask_strides, *self.bounds_strides,
                *self.heads, longest, length_class, *self.rows, *self.numbers, **self.options,
            )  # fmt: skip


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


def _bounds(keep: Tensor) -> Tensor:
    """int32 `[batch or 1, heads or 1, 2]`: the index of the first dropped key, and one past the last kept key."""
    keep, positions = keep[:, :, 0], torch.arange(keep.shape[3], device=keep.device)
    whole = positions.masked_fill(keep, keep.shape[2]).amin(-1)
    last = (positions + 1).masked_fill(~keep, 0).amax(-1)
    return torch.stack([whole, last], -1).int()


def _dense_rows(x: Tensor) -> Tensor:
    """The tensor with stride 1 in the last dimension; the kernels support any other strides."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _new_context(query: Tensor, value: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """A context with memory layout `[batch, queries, heads, value_dim]`, so that merging the heads needs no copy."""
    batch, heads, queries, _ = query.shape
    new = query.new_empty if cu_seqlens is None else query.new_zeros  # rows outside all examples stay 0
    return new(batch, queries, heads, value.shape[3]).transpose(1, 2)


def _new_normaliser(query: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    if cu_seqlens is None:
        return query.new_empty(query.shape[:3], dtype=torch.float32)
    return query.new_full(query.shape[:3], math.inf, dtype=torch.float32)


def _new_gradient(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    like = torch.empty_like if cu_seqlens is None else torch.zeros_like
    return like(x.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def _check(query, key, value, keep, packed) -> None:
    """Raise ValueError unless the kernel supports these tensors."""
    tensors = {"query": query, "key": key, "value": value, "keep": keep}
    tensors = {name: x for name, x in tensors.items() if x is not None}
    low, high = HEAD_DIMS
    if query.dtype not in DTYPES or len({query.dtype, key.dtype, value.dtype}) > 1:
        expected = f"needs one dtype, fp16, bf16 or fp32; {ALTERNATIVE}"
    elif not all(low <= x.shape[-1] <= high for x in (query, value)):
        expected = f"supports head dimensions from {low} to {high}; {ALTERNATIVE}"
    elif packed is not None and keep is not None:
        expected = "supports no mask for packed examples, which have no padding; omit keep"
    elif len({x.device for x in tensors.values()}) > 1:
        expected = "needs all tensors on one device"
    elif query.device.type != "cuda" and not INTERPRETED:
        expected = f"needs a GPU; {ALTERNATIVE}"
    elif query.device.type == "cuda" and torch.cuda.get_device_properties(query.device).major < 8:
        expected = f"needs a GPU of compute capability 8 or more; {ALTERNATIVE}"
    else:
        return
    # Only here, because torch.compile does not support this loop over symbolic sizes.
    given = [f"{name} {tuple(x.shape)} {x.dtype} on {x.device}" for name, x in tensors.items()]
    raise ValueError(f"fused attention {expected}. Got {', '.join(given)}.")
