"""TanhMax attention around the Triton kernels: checks, gradients, and operators for graphs.

A call launches the kernels directly. In a captured graph, forward and backward are `torch.library` operators, which
`torch.compile(fullgraph=True)` and `torch.export` keep whole; elsewhere an operator would only cost time. Memory beyond
inputs and outputs is linear in the length.
"""

import re
from functools import lru_cache

import torch
from torch import Tensor

from hf_bidir.modeling.attention_call import AttentionCall

from .chunked_attention import refuse_second_derivatives
from .fused_kernels import MOST_SPLITS, KeyGradients, QueryGradients, Result
from .fused_launch import launch
from .fused_path import unsupported
from .fused_problem import Inputs, Prepared, pairs_of, prepared, rows_of

PART = 128  # keys; the parts into which the decode kernel splits the keys are multiples of it
# Unique per module name, so that a checkpoint's copy of this file does not replace the operators of another version.
NAMESPACE = re.sub(r"\W", "_", __name__)
SCHEMA = (
    "Tensor query, Tensor key, Tensor value, Tensor? keep, Tensor? bias, Tensor? shifts, Tensor? seed, "
    "float scaling, float? cap, float dropout, bool causal, SymInt? window"
)
TENSORS = 7  # the inputs before the numbers


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None,
    call: AttentionCall,
) -> Tensor:
    """TanhMax attention in one kernel, differentiable once in query, key, value, bias and the negative mass.

    Args:
        query: `[batch, heads, queries, head_dim]`, fp16, bf16 or fp32; `key` and `value` have `keys` in place of
            `queries` and may have fewer heads; the values may have another last size. Both last sizes lie in 16 to 256.
        keep: boolean, `[batch or 1, heads or 1, queries or 1, keys]`, True = attend. With one row for all queries,
            blocks of keys after the last kept one are skipped.
        call: TanhMax without sinks; blocks outside the window or beyond the diagonal are skipped.

    Returns:
        The context, `[batch, heads, queries, value_dim]`, in the dtype of `query`: zeros for a query without kept keys,
        and NaN for a query with a score that is NaN, infinite or beyond 1e9.

    Raises:
        ValueError: no GPU, or an unsupported size, dtype or bias.

    Source: Huang, Yang, Wang 2024 (doi 10.6339/24-JDS1134) for TanhMax; Dao 2023 (arXiv:2307.08691) for the tiling.
    """
    _check(query, key, value)
    scaling = call.scaling
    shift = call.shift(query)
    window = call.window
    if scaling < 0:  # the kernel assumes that the largest product of a row has the largest score
        query, scaling = -query, -scaling
    if window is not None:
        window = min(window, max(query.shape[2], key.shape[2]))  # larger numbers could overflow int32
    inputs = Inputs(
        query,
        key,
        value,
        keep,
        None if call.bias is None else _full_bias(call.bias, (*query.shape[:3], key.shape[2])),
        None if shift is None else shift.flatten().contiguous(),
        # a tensor rather than a number, so that a compiled graph draws a new seed in every call
        torch.randint(2**62, (1,), device=query.device) if call.dropout > 0 else None,
        scaling,
        call.softcap,
        call.dropout,
        call.causal,
        window,
    )
    # tensors of other classes, such as fake ones, see an operator; so do graphs
    if torch.compiler.is_compiling() or type(query) is not Tensor:
        return _operator(*inputs)[0]
    return _Fused.apply(*inputs)


def _forward(*inputs) -> tuple[Tensor, Tensor]:
    """The context and the normaliser of `Result`."""
    tensors = Inputs(*inputs)
    call = prepared(tensors)
    context = _new_context(tensors)
    normaliser = _new_normaliser(tensors)
    result = Result(rows_of(context), normaliser)
    if call.code.rows:
        _decode(call, result)
    else:
        launch("forward", call, (result,), _sequences(context), context.shape[2])
    return context, normaliser


def _decode(call: Prepared, result: Result) -> None:
    """Compute few queries, whose keys are split among programs."""
    problem = call.problem
    context = result.context.pointer
    normaliser = result.normaliser
    sequences = _sequences(problem.key.pointer)
    wanted = max(1, min(_busy_programs(context.device) // sequences, MOST_SPLITS.value))
    span = -(-problem.keys // (wanted * PART)) * PART
    splits = -(-problem.keys // span)
    if splits == 1:
        launch("decode", call, (result, 1, span), sequences)
        return
    batch, heads, queries, size = context.shape
    contexts = context.new_empty(splits * batch, queries, heads, size, dtype=torch.float32)
    parts = Result(rows_of(contexts.transpose(1, 2)), normaliser.new_empty(splits, *normaliser.shape))
    in_parts = call._replace(kinds=(*call.kinds, torch.float32))
    launch("decode", in_parts, (parts, splits, span), sequences * splits)
    launch("merge", call, (parts, result, splits), normaliser.numel())


def _sequences(x: Tensor) -> int:
    """The heads of all examples."""
    return x.shape[0] * x.shape[1]


@lru_cache
def _busy_programs(device: torch.device) -> int:
    """How many programs keep a device busy."""
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8


def _backward(
    grad_context: Tensor,
    context: Tensor,
    normaliser: Tensor,
    bias_wanted: bool,
    *inputs,
) -> tuple:
    """The gradients of query, key, value and bias, and per row that of the shift; None where there is none."""
    saved = Inputs(*inputs)
    call = prepared(saved, grad_context)
    result = Result(rows_of(context), normaliser.contiguous())  # what offloads saved tensors may lay them out anew
    grad_query = _new_gradient(saved.query)
    grad_key = _new_gradient(saved.key)
    grad_value = _new_gradient(saved.value)
    grad_shift = None if saved.shifts is None else torch.zeros_like(result.normaliser)
    grad_bias = None
    if bias_wanted and saved.bias is not None:
        grad_bias = result.normaliser.new_zeros(saved.bias.shape)
    delta = torch.empty_like(result.normaliser)
    of_query = QueryGradients(rows_of(grad_query), delta, grad_shift, pairs_of(grad_bias))
    of_key = KeyGradients(rows_of(grad_key), rows_of(grad_value))
    with_bias = call._replace(kinds=(*call.kinds, bias_wanted))
    launch("query_gradient", with_bias, (call.upstream, result, of_query), _sequences(context), context.shape[2])
    arguments = (call.upstream, result.normaliser, delta, of_key)
    launch("key_value_gradient", call, arguments, _sequences(grad_key), grad_key.shape[2])
    return grad_query, grad_key, grad_value, grad_bias, grad_shift


def _backward_of_graph(grad_context, context, normaliser, bias_wanted, *inputs):
    """`_backward` as an operator, which cannot return None."""
    gradients = _backward(grad_context, context, normaliser, bias_wanted, *inputs)
    return tuple(normaliser.new_empty(0) if x is None else x for x in gradients)


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
    tensors = Inputs(*inputs)
    return _new_context(tensors), _new_normaliser(tensors)


@_backward_operator.register_fake
def _(grad_context, context, normaliser, bias_wanted, *inputs):
    tensors = Inputs(*inputs)
    grad_bias = normaliser.new_empty(tensors.bias.shape if bias_wanted and tensors.bias is not None else 0)
    grad_shift = normaliser.new_empty(0) if tensors.shifts is None else torch.empty_like(normaliser)
    return *map(_new_gradient, inputs[:3]), grad_bias, grad_shift


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*output, *inputs[:TENSORS])
    ctx.numbers = inputs[TENSORS:]


def _save_for_operator(ctx, inputs, output) -> None:
    _save(ctx, inputs, output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, grad_context, _=None, backward=_backward_operator):
    refuse_second_derivatives()
    context, normaliser, *tensors = ctx.saved_tensors
    bias_wanted, shift_wanted = ctx.needs_input_grad[4:6]
    *gradients, grad_bias, grad_rows = backward(grad_context, context, normaliser, bias_wanted, *tensors, *ctx.numbers)
    grad_bias = grad_bias.to(tensors[4].dtype) if bias_wanted else None
    grad_shifts = grad_rows.sum((0, 2)) if shift_wanted else None
    return *gradients, None, grad_bias, grad_shifts, None, *[None] * len(ctx.numbers)


_operator.register_autograd(_gradients, setup_context=_save_for_operator)


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


def _new_context(tensors: Inputs) -> Tensor:
    """A context with memory layout `[batch, queries, heads, value_dim]`, so that merging the heads needs no copy."""
    batch, heads, queries, _ = tensors.query.shape
    return tensors.query.new_empty(batch, queries, heads, tensors.value.shape[3]).transpose(1, 2)


def _new_normaliser(tensors: Inputs) -> Tensor:
    return tensors.query.new_empty(tensors.query.shape[:3], dtype=torch.float32)


def _new_gradient(x: Tensor) -> Tensor:
    """A gradient with memory layout `[batch, length, heads, size]`."""
    return torch.empty_like(x.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def _full_bias(bias: Tensor, scores: tuple[int, ...]) -> Tensor:
    """A bias as `[batch or 1, heads or 1, queries or 1, keys]`; torch's error unless it broadcasts to the scores."""
    bias.expand(scores)
    bias = bias[(None,) * (4 - bias.dim())]
    return bias.expand(*bias.shape[:3], scores[3])


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise ValueError unless the kernels support these tensors."""
    expected: str | None = "one dtype"
    if query.dtype == key.dtype == value.dtype:
        expected = unsupported(query.device, query.dtype, query.shape[3], value.shape[3])
    if expected is None:
        return
    # Only here, because torch.compile does not support this loop over symbolic sizes.
    received = [f"{tuple(x.shape)} {x.dtype} on {x.device}" for x in (query, key, value)]
    raise ValueError(
        f"fused attention needs {expected}, got query, key and value {', '.join(received)}; use "
        'implementation="auto", or in a model attn_implementation="sdpa".'
    )
