"""Biases and soft caps in the Triton kernels."""

from dataclasses import replace

import pytest
import torch

from hf_bidir.modeling.attention_call import attention_call
from hf_bidir.modeling.eager_attention import eager_attention
from tests.modeling.fused_inputs import (
    DEVICE,
    assert_as_exact_as_the_plain_path,
    mask,
    projections,
    with_gradients,
    within_reach,
)

pytest.importorskip("triton")

from hf_bidir.modeling.fused_attention import fused_attention

SHAPES = [(2, 2, 70, 75), (1, 2, 70, 75), (2, 1, 1, 75), (1, 2, 70, 1)]


def bias_of(shape):
    return (2 * torch.randn(shape, generator=torch.Generator().manual_seed(3))).to(DEVICE).requires_grad_()


def compared(inputs, call, keep=None, causal=False, bias=None):
    """Context and gradients of the kernel, of the eager path, and of the eager path in float64."""
    wanted = inputs if bias is None else [*inputs, bias]
    reach = within_reach(keep, inputs[0].shape[2], inputs[1].shape[2], causal, None)
    found = []
    for dtype in (None, inputs[0].dtype, torch.float64):
        *states, term = [x.detach().to(dtype or x.dtype).requires_grad_() for x in wanted] + [None] * (bias is None)
        given = replace(call, bias=term if dtype or term is None else bias)
        if dtype is None:
            context = fused_attention(*inputs, keep, replace(given, causal=causal))
            found.append(with_gradients(context, wanted))
        else:
            context = eager_attention(*states, reach, given)[0]
            found.append(with_gradients(context, states if term is None else [*states, term]))
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_of_every_shape_is_added_and_gets_its_gradient(shape, causal):
    inputs, bias = projections(queries=70, keys=75), bias_of(shape)
    call = attention_call(*inputs[:2], negative_mass=0.4)
    got, plainly, gold = compared(inputs, call, mask("padding", 2, 2, 70, 75), causal, bias)
    assert got[-1].shape == shape
    assert_as_exact_as_the_plain_path(got, plainly, gold)


@pytest.mark.parametrize("cap", [0.5, 2.0, 50.0])
@pytest.mark.parametrize("activation", ["tanhmax", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_soft_capped_scores_and_their_gradients(dtype, activation, cap):
    inputs = projections(queries=70, keys=75, dtype=dtype)
    call = attention_call(*inputs[:2], activation=activation, softcap=cap)
    got, plainly, gold = compared(inputs, call, causal=True)
    assert_as_exact_as_the_plain_path(got, plainly, gold)


def test_small_scores_under_a_cap_keep_their_digits():
    query, key, value = projections(queries=70, keys=75)
    inputs = [(1e-6 * query).detach().requires_grad_(), key, value]
    got, _, gold = compared(inputs, attention_call(query, key, softcap=30.0))
    assert (got[0].double() - gold[0]).norm() < 1e-5 * gold[0].norm()


@pytest.mark.parametrize("cap", [None, 3.0])
def test_few_queries_over_many_keys_take_a_bias_and_a_cap(cap):
    query = projections(heads=4, queries=2, keys=300)[0]
    inputs, bias = [query, *projections(heads=2, queries=2, keys=300)[1:]], bias_of((1, 4, 2, 300))
    got, plainly, gold = compared(inputs, attention_call(*inputs[:2], softcap=cap), bias=bias)
    assert_as_exact_as_the_plain_path(got, plainly, gold)


def test_sinks_are_refused():
    query, key, value = projections()
    with pytest.raises(ValueError, match='supports no sinks; use "eager"'):
        fused_attention(query, key, value, None, attention_call(query, key, sinks=torch.zeros(2, device=DEVICE)))


def test_a_gradient_of_a_gradient_is_refused_where_a_bias_has_one():
    inputs, bias = projections(queries=70, keys=75), bias_of((1, 2, 70, 75))
    context = fused_attention(*inputs, None, attention_call(*inputs[:2], bias=bias))
    with pytest.raises(RuntimeError, match="has only first derivatives"):
        torch.autograd.grad(context.sum(), inputs, create_graph=True)[0].sum().backward()


def test_a_bias_of_fewer_dimensions_broadcasts_as_on_the_eager_path():
    inputs, bias = projections(queries=70, keys=75), bias_of((70, 75))
    got, plainly, gold = compared(inputs, attention_call(*inputs[:2]), bias=bias)
    assert_as_exact_as_the_plain_path(got, plainly, gold)


@pytest.mark.parametrize("shape", [(1, 2, 20, 75), (1, 2, 70, 74), (1, 1, 1, 70, 75)], ids=str)
def test_a_bias_that_does_not_fit_the_scores_is_refused(shape):
    inputs = projections(queries=70, keys=75)
    with pytest.raises(ValueError, match=r"bias must broadcast to .* = \(2, 2, 70, 75\), got \(1, "):
        fused_attention(*inputs, None, attention_call(*inputs[:2], bias=bias_of(shape)))
