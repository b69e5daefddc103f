"""Signed attention around the Triton kernels: checks, gradients, and operators for graphs.

A call launches the kernels directly. In a captured graph, forward and backward are `torch.library` operators, which
`torch.compile(fullgraph=True)` and `torch.export` keep whole; elsewhere an operator would only cost time. Memory beyond
inputs and outputs is linear in the length.
"""

import math
import re
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor

from hf_bidir.kernels.eager_gradients import eager_gradients, needs_eager_gradients
from hf_bidir.kernels.fused_kernels import MOST_SPLITS
from hf_bidir.kernels.fused_launch import Variant, launch
from hf_bidir.kernels.fused_path import HEAD_DIMS, INTERPRETED
from hf_bidir.kernels.fused_problem import NO_STRIDES, Inputs, Problem, strides_of, wide
from hf_bidir.modeling.activations import score_shift
from hf_bidir.modeling.attention_call import AttentionCall, attention_call, check_shapes

ALTERNATIVE = 'use implementation="auto", or in a model attn_implementation="sdpa"'
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
PART = 128  # keys; the parts into which the decode kernel splits the keys are multiples of it
MOST_PARTS = MOST_SPLITS.value
# Unique per module name, so that a checkpoint's copy of this file does not replace the operators of another version.
NAMESPACE = re.sub(r"\W", "_", __name__)

TENSORS = Inputs._fields.index("max_seqlen")  # the inputs before it are tensors
OTHERS = len(Inputs._fields) - Inputs._fields.index("seed")  # the inputs from there on have no gradient
SCHEMA = (
    "Tensor query, Tensor key, Tensor value, Tensor? keep, Tensor? bias, Tensor? shifts, Tensor? seed, "
    "Tensor? cu_seqlens, Tensor? cu_seqlens_k, SymInt max_seqlen, SymInt max_seqlen_k, bool signed, float scaling, "
    "float shift, float? cap, float dropout, bool causal, SymInt? window"
)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None = None,
    call: AttentionCall | None = None,
    packed: tuple[Tensor, Tensor, int, int] | None = None,
) -> Tensor:
    """TanhMax or softmax attention in one kernel, differentiable in query, key, value, bias and the negative mass.

    Derivatives beyond the first take the eager path; they are refused with dropout, packed examples, or a bias that has
    a gradient.

    Args:
        query: `[batch, heads, queries, head_dim]`, fp16, bf16 or fp32; `key` and `value` have `keys` in place of
            `queries` and may have fewer heads; the values may have another last size. Both last sizes lie in 16 to 256.
        keep: boolean, `[batch or 1, heads or 1, queries or 1, keys]`, True = attend. With one row for all queries,
            blocks of keys after the last kept one are skipped.
        call: TanhMax by default, without sinks; blocks outside the window or beyond the diagonal are skipped.
        packed: `Packed` boundaries of examples of different lengths, without padding; `keep` and bias must be None.

    Returns:
        The context, `[batch, heads, queries, value_dim]`, in the dtype of `query`: zeros for a query without kept keys,
        and NaN for a query with a score that is NaN, infinite or beyond 1e9 (for softmax NaN or +inf).

    Raises:
        ValueError: no GPU, shapes that do not fit, or an unsupported size, dtype or combination.

    Source: Huang, Yang, Wang 2024 (doi 10.6339/24-JDS1134) for TanhMax; Dao 2023 (arXiv:2307.08691) for the tiling.
    """
    check_shapes(query, key, value, keep)
    call = attention_call(query, key) if call is None else call
    return attend_fused(query, key, value, keep, call, packed, torch.compiler.is_compiling())


def attend_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None,
    call: AttentionCall,
    packed: tuple[Tensor, Tensor, int, int] | None = None,
    captured: bool = False,
) -> Tensor:
    """`fused_attention` of inputs whose shapes are already checked; `captured` says whether a graph is being made."""
    _check(query, key, value, keep, call, packed)
    queries, keys, scaling, window = query.shape[2], key.shape[2], call.scaling, call.window
    if scaling < 0:  # the kernel assumes that the largest product of a row has the largest score
        query, scaling = -query, -scaling
    elif scaling == 0:  # -inf * 0 would be NaN
        query, scaling = query * 0, 1.0
    mass, shifts, shift = call.negative_mass, None, 0.0
    if isinstance(mass, Tensor):
        shifts = cast(Tensor, call.shift(query)).flatten().contiguous()
    elif mass != 1:
        shift = score_shift(mass)
    # A tensor rather than a number, so that a compiled graph draws a new seed in every call.
    seed = torch.randint(2**62, (1,), device=query.device) if call.dropout > 0 else None
    starts = (None, None, queries, keys) if packed is None else packed
    if window is not None:
        window = min(window, max(queries, keys))  # larger numbers could overflow int32
    numbers = (call.activation == "tanhmax", scaling, shift, call.softcap, call.dropout, call.causal, window)
    bias = None if call.bias is None else _full_bias(call.bias, query, keys)
    inputs = (query, key, value, keep, bias, shifts, seed, *starts, *numbers)
    # tensors of other classes, such as fake ones, see an operator; so do graphs
    return _operator(*inputs)[0] if captured or type(query) is not Tensor else _Fused.apply(*inputs)


def _forward(*inputs) -> tuple[Tensor, Tensor]:
    """The context, and per row `[batch, heads, queries]` log2(sum 2 cosh), negated if all its scores are small."""
    given, problem = Inputs._make(inputs), Problem(inputs)
    context = _new_context(given.query, given.value, given.cu_seqlens)
    normaliser = _new_normaliser(given.query, given.cu_seqlens)
    if problem.few_rows:
        _decode(problem, context, normaliser)
        return context, normaliser
    longest, _ = problem.lengths
    arguments = (
        *problem.states, context, normaliser, *problem.optional, *problem.strides, *problem.head_counts, longest,
        *problem.numbers,
    )  # fmt: skip
    launch("forward", problem.variant, problem.kinds, arguments, problem.sequences, longest)
    return context, normaliser


def _decode(problem: Problem, context: Tensor, normaliser: Tensor) -> None:
    """Fill in context and normaliser of few queries, whose keys are split among programs."""
    heads, groups = problem.head_counts
    queries, keys = problem.numbers[:2]
    sequences, kinds, variant = problem.sequences // groups, problem.kinds, problem.variant
    wanted = max(1, min(_busy_programs(context.device) // sequences, MOST_PARTS))
    span = -(-keys // (wanted * PART)) * PART
    splits, parts, log_totals = -(-keys // span), context, normaliser
    if splits > 1:
        parts = context.new_empty(splits, *context.transpose(1, 2).shape, dtype=torch.float32)
        log_totals = normaliser.new_empty(splits, *normaliser.shape)
    arguments = (
        *problem.states, parts, log_totals, *problem.optional[:3], *problem.strides, heads, groups, splits, span,
        *problem.numbers[:5],
    )  # fmt: skip
    rows = 1 << (max(16, queries * groups) - 1).bit_length()
    launch("decode", (*variant, rows), (parts.dtype, *kinds), arguments, sequences * splits)
    if splits > 1:
        arguments = (parts, log_totals, context, normaliser, heads, splits, queries)
        merged = Variant._make(variant)
        merged = (merged.VALUE, merged.VALUE_PAD, merged.SIGNED, merged.PRECISION)
        launch("merge", merged, kinds[:2], arguments, normaliser.numel())


@lru_cache
def _busy_programs(device: torch.device) -> int:
    """How many programs keep a device busy."""
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8


def _backward(grad_context: Tensor, context: Tensor, normaliser: Tensor, bias_wanted: bool, *inputs) -> tuple:
    """The gradients of query, key, value, and bias, and per row that of the shift; None where there is none."""
    # what offloads saved tensors may lay them out anew; of a tensor as it was, these are views
    context, normaliser = context.transpose(1, 2).contiguous().transpose(1, 2), normaliser.contiguous()
    problem, given = Problem(inputs, grad_context), Inputs._make(inputs)
    starts, bias = given.cu_seqlens, given.bias
    grad_query, grad_key = _new_gradient(given.query, starts), _new_gradient(given.key, starts)
    grad_value, delta = _new_gradient(given.value, starts), torch.empty_like(normaliser)
    grad_shift = None if given.shifts is None else torch.zeros_like(normaliser)
    grad_bias, bias_strides, width = None, NO_STRIDES, None
    if bias_wanted:
        grad_bias = torch.zeros(bias.shape, dtype=torch.float32, device=bias.device)
        bias_strides = strides_of(grad_bias)
        width = wide(bias_strides)
    (longest, longest_k), variant, kinds = problem.lengths, problem.variant, problem.kinds
    arguments = (
        *problem.states, context, problem.upstream, grad_query, normaliser, delta, grad_shift, grad_bias,
        *problem.optional, *problem.strides, *bias_strides, *problem.head_counts, longest, *problem.numbers,
    )  # fmt: skip
    kinds_of_query = (given.shifts is None, bias_wanted, width, *kinds)
    launch("query_gradient", variant, kinds_of_query, arguments, problem.sequences, longest)
    arguments = (
        *problem.states, problem.upstream, grad_key, grad_value, normaliser, delta, *problem.optional,
        *problem.strides, *problem.head_counts, longest_k, *problem.numbers,
    )  # fmt: skip
    _, groups = problem.head_counts
    launch("key_value_gradient", variant, kinds, arguments, problem.sequences // groups, longest_k)
    return grad_query, grad_key, grad_value, grad_bias, grad_shift


def _backward_of_graph(grad_context, context, normaliser, bias_wanted, *inputs):
    """`_backward` as an operator, which cannot return None."""
    found = _backward(grad_context, context, normaliser, bias_wanted, *inputs)
    return tuple(normaliser.new_empty(0) if x is None else x for x in found)


_operator = torch.library.custom_op(
    f"{NAMESPACE}::signed_attention", _forward, mutates_args=(), schema=f"({SCHEMA}) -> (Tensor, Tensor)"
)
_backward_operator = torch.library.custom_op(
    f"{NAMESPACE}::signed_attention_backward",
    _backward_of_graph,
    mutates_args=(),
    schema=f"(Tensor grad_context, Tensor context, Tensor normaliser, bool bias_wanted, {SCHEMA}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@_operator.register_fake
def _(*inputs):
    given = Inputs(*inputs)
    return _new_context(given.query, given.value, given.cu_seqlens), _new_normaliser(given.query, given.cu_seqlens)


@_backward_operator.register_fake
def _(grad_context, context, normaliser, bias_wanted, *inputs):
    given = Inputs(*inputs)
    grad_bias = normaliser.new_empty(given.bias.shape if bias_wanted and given.bias is not None else 0)
    grad_shift = normaliser.new_empty(0) if given.shifts is None else torch.empty_like(normaliser)
    return *(_new_gradient(x, given.cu_seqlens) for x in given[:3]), grad_bias, grad_shift


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*output, *inputs[:TENSORS])
    ctx.numbers = inputs[TENSORS:]


def _save_for_operator(ctx, inputs, output) -> None:
    _save(ctx, inputs, output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, grad_context, _=None, backward=_backward_operator):
    context, normaliser, *tensors = ctx.saved_tensors
    bias_wanted, shift_wanted = ctx.needs_input_grad[4:6]
    if needs_eager_gradients(grad_context):
        if found := _differentiable_gradients(ctx, grad_context):
            *gradients, grad_shifts = found
            return *gradients, None, None, grad_shifts, *[None] * OTHERS
        backward = _backward_operator  # which refuses that
    *gradients, grad_bias, grad_rows = backward(grad_context, context, normaliser, bias_wanted, *tensors, *ctx.numbers)
    grad_bias = grad_bias.to(tensors[4].dtype) if bias_wanted else None
    grad_shifts = grad_rows.sum((0, 2)) if shift_wanted else None
    return *gradients, None, grad_bias, grad_shifts, *[None] * OTHERS


def _differentiable_gradients(ctx, grad_context) -> tuple[Tensor | None, ...] | None:
    """The gradients of query, key, value and shifts by the eager path, for `create_graph=True`; None where it cannot
    compute them: it does not know which coefficients were dropped, nor the examples of packed tensors."""
    given = Inputs(*ctx.saved_tensors[2:], *ctx.numbers)
    if given.seed is not None or given.cu_seqlens is not None or ctx.needs_input_grad[4]:
        return None
    mass = math.exp(-2 * given.shift)
    activation = "tanhmax" if given.signed else "softmax"
    call = AttentionCall(
        activation, mass, given.scaling, 0.0, given.causal, given.window, bias=given.bias, softcap=given.cap
    )
    per_head = None if given.shifts is None else given.shifts.view(-1, 1, 1)
    return eager_gradients(given[:3], per_head, given.keep, call, grad_context)


def _no_second_gradients(ctx, *_):
    raise RuntimeError(
        "fused attention with dropout, with packed examples or with a bias that has a gradient has only first "
        'derivatives; for second ones pass no dropout, or use "eager".'
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
    """A gradient with memory layout `[batch, length, heads, size]`."""
    batch, heads, length, size = x.shape
    new = x.new_empty if cu_seqlens is None else x.new_zeros
    return new(batch, length, heads, size).transpose(1, 2)


def _full_bias(bias: Tensor, query: Tensor, keys: int) -> Tensor:
    """A bias as `[batch or 1, heads or 1, queries or 1, keys]`; ValueError unless it broadcasts to the scores."""
    scores = (*query.shape[:3], keys)
    if bias.dim() > 4 or any(size not in (1, full) for size, full in zip(bias.shape[::-1], scores[::-1], strict=False)):
        raise ValueError(f"bias must broadcast to [batch, heads, queries, keys] = {scores}, got {tuple(bias.shape)}.")
    bias = bias[(None,) * (4 - bias.dim())]
    return bias.expand(*bias.shape[:3], keys)


def _check(query, key, value, keep, call, packed) -> None:
    """Raise ValueError unless the kernel supports these tensors."""
    (low, high), sizes, device, bias = HEAD_DIMS, (query.shape[3], value.shape[3]), query.device, call.bias
    if query.dtype not in DTYPES or not query.dtype == key.dtype == value.dtype:
        expected = f"needs one dtype, fp16, bf16 or fp32; {ALTERNATIVE}"
    elif min(sizes) < low or max(sizes) > high:
        expected = f"supports head dimensions from {low} to {high}; {ALTERNATIVE}"
    elif packed is not None and (keep is not None or bias is not None):
        expected = "supports no mask and no bias for packed examples, which have no padding; omit keep and bias"
    elif call.sinks is not None:
        expected = 'supports no sinks; use "eager"'
    elif (
        not device == key.device == value.device
        or (keep is not None and keep.device != device)
        or (bias is not None and bias.device != device)
    ):
        expected = "needs all tensors on one device"
    elif device.type != "cuda" and not INTERPRETED:
        expected = f"needs a GPU; {ALTERNATIVE}"
    elif device.type == "cuda" and _capability(device) < 8:
        expected = f"needs a GPU of compute capability 8 or more; {ALTERNATIVE}"
    else:
        return
    # Only here, because torch.compile does not support this loop over symbolic sizes.
    given = [
        f"{x} {tuple(y.shape)} {y.dtype} on {y.device}" for x, y in (("query", query), ("key", key), ("value", value))
    ]
    raise ValueError(f"fused attention {expected}. Got {', '.join(given)}.")


@lru_cache
def _capability(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).major
