"""Dropout, biases and soft caps in the Triton kernels."""

import pytest
import torch

from hf_bidir import bidir_attention
from tests.kernels.fused_inputs import (
    DEVICE,
    KEYS,
    assert_as_exact,
    assert_exact,
    compared,
    fused,
    grouped,
    mask,
    projections,
    scaled,
    with_gradients,
)


def dropped(inputs, rate: float, seed: int):
    """The factors that dropout applied to the coefficients `[..., queries, keys]`, read off values that are a basis."""
    query, key, _ = inputs
    batch, heads, keys, _ = key.shape
    basis = torch.eye(keys, device=DEVICE).expand(batch, heads, keys, keys)
    torch.manual_seed(seed)
    applied = fused(query, key, basis, dropout=rate)
    return applied / bidir_attention(query, key, basis, implementation="eager")[0].detach()


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
    query, key, value = inputs = grouped(queries=18, keys=18, batch=1)
    torch.manual_seed(5)
    got = bidir_attention(*inputs, dropout=0.4, implementation="fused")[0]
    factors = dropped([query, *(x.repeat_interleave(2, 1) for x in (key, value))], 0.4, seed=5)
    _, coefficients = bidir_attention(*inputs, implementation="eager")
    expected = (coefficients * factors) @ value.repeat_interleave(2, 1)
    torch.testing.assert_close(with_gradients(got, inputs), with_gradients(expected, inputs), rtol=1e-3, atol=2e-5)


def bias_of(shape):
    return (2 * torch.randn(shape, generator=torch.Generator().manual_seed(3))).to(DEVICE).requires_grad_()


@pytest.mark.parametrize("shape", [(2, 2, 20, 18), (2, 1, 1, 18), (20, 1)], ids=str)
def test_a_bias_of_every_shape_is_added_and_gets_its_gradient(shape):
    keep = mask("padding", 2, 2, 20, 18)
    assert_exact(projections(), keep, causal=len(shape) == 4, bias=bias_of(shape), negative_mass=0.4)


@pytest.mark.parametrize(("dtype", "cap"), [(torch.float32, 0.5), (torch.bfloat16, 2.0)])
def test_soft_capped_scores_and_their_gradients(dtype, cap):
    assert_exact(projections(1, dtype=dtype), causal=True, softcap=cap)


def test_small_scores_under_a_cap_keep_their_digits():
    results = compared(scaled(projections(1), 1e-6), softcap=30.0)
    assert_as_exact(*([context] for context, *_ in results), relative=1e-5)


def test_few_queries_over_many_keys_take_a_bias_and_a_cap():
    assert_exact(grouped(2, batch=1), bias=bias_of((1, 4, 2, KEYS)), softcap=3.0)
