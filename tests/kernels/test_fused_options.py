"""Dropout, biases, soft caps and packed examples in the Triton kernels."""

from dataclasses import replace

import pytest
import torch

from hf_bidir import bidir_attention, packed_attention
from hf_bidir.modeling.attention_call import attention_call
from hf_bidir.modeling.eager_attention import eager_attention
from tests.kernels.fused_inputs import (
    DEVICE,
    KEYS,
    assert_as_exact_as_the_plain_path,
    attended,
    grouped,
    mask,
    projections,
    scaled,
    with_gradients,
    within_reach,
)

from hf_bidir.kernels.fused_attention import fused_attention  # isort: skip  # where there is Triton
from hf_bidir.kernels.packed_attention import Packed  # isort: skip

STARTS, KEY_STARTS = [0, 7, 7, 25], [0, 20, 23, 23]  # one example has no queries, another no keys


def dropped(inputs, rate: float, seed: int):
    """The factors that dropout applied to the coefficients `[..., queries, keys]`, read off values that are a basis."""
    query, key, _ = inputs
    batch, heads, keys, _ = key.shape
    basis = torch.eye(keys, device=DEVICE).expand(batch, heads, keys, keys)
    torch.manual_seed(seed)
    applied = bidir_attention(query, key, basis, dropout=rate, implementation="fused")[0]
    return (applied / bidir_attention(query, key, basis, implementation="eager")[0]).detach()


def test_dropout_of_small_scores_drops_what_it_drops_of_large_ones():
    query, key, _ = projections(dtype=torch.bfloat16)
    basis = torch.eye(18, device=DEVICE, dtype=torch.bfloat16).expand(2, 2, 18, 18)
    found = []
    for size in (1e-6, 1.0):
        torch.manual_seed(0)
        found.append(attended((size * query).detach(), key, basis, dropout=0.4) == 0)
    assert torch.equal(*found)


def test_dropout_drops_its_share_scales_the_rest_and_differs_between_calls_heads_and_examples():
    inputs = projections(queries=40, keys=40)
    factors, others = dropped(inputs, 0.5, seed=3), dropped(inputs, 0.5, seed=4)
    kept = factors != 0
    assert abs(kept.double().mean().item() - 0.5) < 0.03  # 6,400 draws: 5 standard deviations
    torch.testing.assert_close(factors[kept], torch.full_like(factors[kept], 2.0), rtol=1e-3, atol=0)
    different = [factors[0, 0], factors[0, 1], factors[1, 0], others[0, 0]]
    for i, one in enumerate(different):
        for other in different[i + 1 :]:
            assert 0.4 < ((one != 0) == (other != 0)).double().mean() < 0.6


def test_the_backward_pass_drops_what_the_forward_pass_dropped_of_grouped_heads_too():
    query, key, value = inputs = grouped(queries=18, keys=18)
    torch.manual_seed(5)
    got = attended(*inputs, dropout=0.4)
    factors = dropped([query, *(x.repeat_interleave(2, 1) for x in (key, value))], 0.4, seed=5)
    _, coefficients = bidir_attention(*inputs, implementation="eager")
    expected = (coefficients * factors) @ value.repeat_interleave(2, 1)
    torch.testing.assert_close(with_gradients(got, inputs), with_gradients(expected, inputs), rtol=1e-3, atol=2e-5)


def bias_of(shape):
    return (2 * torch.randn(shape, generator=torch.Generator().manual_seed(3))).to(DEVICE).requires_grad_()


def compared(inputs, call, keep=None, causal=False, bias=None):
    """Context and gradients of the kernel, of the eager path, and of the eager path in float64."""
    wanted = inputs if bias is None else [*inputs, bias]
    reach = within_reach(keep, inputs[0].shape[2], inputs[1].shape[2], causal, None)
    context = fused_attention(*inputs, keep, replace(call, causal=causal, bias=bias))
    found = [with_gradients(context, wanted)]
    for dtype in (inputs[0].dtype, torch.float64):
        copies = [x.detach().to(dtype).requires_grad_() for x in wanted]
        term = copies[3] if len(copies) > 3 else None
        found.append(with_gradients(eager_attention(*copies[:3], reach, replace(call, bias=term))[0], copies))
    return found


@pytest.mark.parametrize("shape", [(2, 2, 20, 18), (2, 1, 1, 18), (20, 1)], ids=str)
def test_a_bias_of_every_shape_is_added_and_gets_its_gradient(shape):
    inputs, bias = projections(), bias_of(shape)
    call = attention_call(*inputs[:2], negative_mass=0.4)
    got, plainly, gold = compared(inputs, call, mask("padding", 2, 2, 20, 18), len(shape) == 4, bias)
    assert got[-1].shape == shape
    assert_as_exact_as_the_plain_path(got, plainly, gold)


@pytest.mark.parametrize(
    ("dtype", "activation", "cap"), [(torch.float32, "tanhmax", 0.5), (torch.bfloat16, "softmax", 2.0)]
)
def test_soft_capped_scores_and_their_gradients(dtype, activation, cap):
    inputs = projections(dtype=dtype)
    call = attention_call(*inputs[:2], activation=activation, softcap=cap)
    assert_as_exact_as_the_plain_path(*compared(inputs, call, causal=True))


def test_small_scores_under_a_cap_keep_their_digits():
    inputs = scaled(projections(), 1e-6)
    got, _, gold = compared(inputs, attention_call(*inputs[:2], softcap=30.0))
    assert (got[0].double() - gold[0]).norm() < 1e-5 * gold[0].norm()


def test_few_queries_over_many_keys_take_a_bias_and_a_cap():
    inputs = grouped(2)
    assert_as_exact_as_the_plain_path(
        *compared(inputs, attention_call(*inputs[:2], softcap=3.0), bias=bias_of((1, 4, 2, KEYS)))
    )


def test_a_gradient_of_a_gradient_is_refused_where_a_bias_has_one():
    inputs = projections()
    context = fused_attention(*inputs, None, attention_call(*inputs[:2], bias=bias_of((1, 2, 20, 18))))
    with pytest.raises(RuntimeError, match="has only first derivatives"):
        torch.autograd.grad(context.sum(), inputs, create_graph=True)[0].sum().backward()


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"sinks": torch.zeros(2)}, 'supports no sinks; use "eager"'),
        ({"bias": torch.zeros(1, 2, 12, 18)}, r"bias must broadcast to .* = \(2, 2, 20, 18\), got \(1, 2, 12, 18\)"),
        ({"bias": torch.zeros(1, 1, 1, 20, 18)}, r"bias must broadcast to .*, got \(1, 1, 1, 20, 18\)"),
    ],
)
def test_terms_that_the_kernel_cannot_take_are_refused(terms, message):
    inputs, terms = projections(), {name: x.to(DEVICE) for name, x in terms.items()}
    with pytest.raises(ValueError, match=message):
        fused_attention(*inputs, None, attention_call(*inputs[:2], **terms))


def packed_inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 2, 16, generator=generator).to(DEVICE).requires_grad_() for n in (25, 23, 23)]


def boundaries(numbers):
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize(
    ("causal", "window", "mass"), [(False, None, (0.5, 0.0)), (True, None, 1.0), (False, 4, 0.0)], ids=str
)
def test_packed_examples_attend_to_themselves_alone(causal, window, mass):
    inputs, starts = packed_inputs(), (boundaries(STARTS), boundaries(KEY_STARTS))
    context = packed_attention(*inputs, *starts, causal=causal, window=window, negative_mass=mass)
    examples = []
    for q0, q1, k0, k1 in zip(STARTS, STARTS[1:], KEY_STARTS, KEY_STARTS[1:], strict=False):
        query, key, value = inputs[0][q0:q1], inputs[1][k0:k1], inputs[2][k0:k1]
        if q0 == q1 or k0 == k1:
            examples.append(0 * query)
            continue
        reach = within_reach(None, q1 - q0, k1 - k0, causal, window)
        alone = [t.transpose(0, 1).unsqueeze(0) for t in (query, key, value)]
        attended_to = bidir_attention(*alone, reach, negative_mass=mass, implementation="eager")[0]
        examples.append(attended_to[0].transpose(0, 1))
    expected = with_gradients(torch.cat(examples), inputs)
    torch.testing.assert_close(with_gradients(context, inputs), expected, rtol=1e-4, atol=2e-5)


def test_boundaries_behind_the_end_or_in_a_column_of_a_table_are_read_as_they_are():
    query = packed_inputs()[0].detach()
    within = packed_attention(query, query, query, boundaries([0, 10, 25]), max_seqlen=25)
    beyond = packed_attention(query, query, query, boundaries([0, 10, 90]), max_seqlen=25)
    column = packed_attention(query, query, query, boundaries([[0, 0], [10, 1], [25, 2]])[:, 0])
    torch.testing.assert_close((beyond, column), (within, within))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seqlens": boundaries([0, 7, 20])}, r"cu_seqlens must rise from 0 to 25, got \[0, 7, 20\]"),
        ({"cu_seqlens": boundaries([0, 20, 7, 25])}, r"must rise from 0 to 25, got \[0, 20, 7, 25\]"),
        ({"cu_seqlens": boundaries([5, 25])}, "must rise from 0 to 25"),
        ({"cu_seqlens": boundaries([25])}, r"must be int32 \[examples \+ 1\].*got \(1,\)"),
        ({"cu_seqlens": boundaries([0, 25]).long()}, r"must be int32 .*torch\.int64"),
        ({"cu_seqlens": [0, 25]}, "must be an int32 tensor .* got a list"),
        ({"max_seqlen": 0}, "max_seqlen must be an integer of at least 1, got 0"),
        ({"max_seqlen": 6.0}, "max_seqlen must be an integer of at least 1, got 6.0"),
        ({"max_seqlen_k": 25}, "without cu_seqlens_k, cu_seqlens also applies to the keys; .*max_seqlen_k=25"),
        ({"key": packed_inputs()[1], "value": packed_inputs()[1]}, "got 23 keys for 25 queries"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"window": 1.5}, "window must be an integer of at least 1, or None; got 1.5"),
        ({"activation": "tanh"}, '"tanh" has no fused path; choose "tanhmax" or "softmax"'),
    ],
)
def test_what_packed_attention_cannot_take_is_refused(change, message):
    query = packed_inputs()[0]
    arguments = {"query": query, "key": query, "value": query, "cu_seqlens": boundaries([0, 25])} | change
    with pytest.raises(ValueError, match=message):
        packed_attention(**arguments)


def test_a_mask_besides_packed_examples_is_refused():
    query = projections(queries=18)[0]
    examples = Packed(boundaries([0, 18]), boundaries([0, 18]), 18, 18)
    with pytest.raises(ValueError, match="omit keep"):
        fused_attention(query, query, query, mask("padding", 2, 1, 1, 18), packed=examples)
