"""Dropout, biases and soft caps in the Triton kernels."""

import re
from dataclasses import replace

import pytest
import torch

from hf_bidir import bidir_attention
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
    factors = dropped(inputs, 0.5, seed=3)
    others = dropped(inputs, 0.5, seed=4)
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


@pytest.mark.parametrize(("dtype", "cap"), [(torch.float32, 0.5), (torch.bfloat16, 2.0)])
def test_soft_capped_scores_and_their_gradients(dtype, cap):
    inputs = projections(dtype=dtype)
    call = attention_call(*inputs[:2], softcap=cap)
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


@pytest.mark.parametrize("shape", [(1, 2, 12, 18), (1, 1, 1, 20, 18)])
def test_a_bias_that_does_not_broadcast_is_refused(shape):
    inputs = projections()
    with pytest.raises(ValueError, match=rf"= \(2, 2, 20, 18\), got {re.escape(str(shape))}"):
        fused_attention(*inputs, None, attention_call(*inputs[:2], bias=torch.zeros(shape, device=DEVICE)))
