"""Dropout in the Triton kernels."""

import pytest
import torch

from hf_bidir import bidir_attention
from tests.modeling.fused_inputs import (
    DEVICE,
    attended,
    dropped,
    projections,
    with_gradients,
)

triton = pytest.importorskip("triton")


def test_dropout_of_small_scores_drops_what_it_drops_of_large_ones():
    query, key, _ = projections(dtype=torch.bfloat16)
    basis = torch.eye(29, device=DEVICE, dtype=torch.bfloat16).expand(2, 2, 29, 29)
    dropped = []
    for size in (1e-6, 1.0):
        torch.manual_seed(0)
        dropped.append(attended((size * query).detach(), key, basis, dropout=0.4) == 0)
    assert torch.equal(*dropped)
    assert 0.3 < dropped[0].double().mean() < 0.5


def test_dropout_drops_its_share_and_scales_the_rest():
    factors = dropped(projections(queries=64, keys=64), 0.3, seed=3)
    kept = factors != 0
    assert abs(kept.double().mean().item() - 0.7) < 0.02  # 16,384 draws: 5 standard deviations
    torch.testing.assert_close(factors[kept], torch.full_like(factors[kept], 1 / 0.7), rtol=1e-3, atol=0)


def test_dropout_differs_from_call_to_call_and_from_head_to_head_of_every_example():
    inputs = projections(queries=32, keys=32)
    factors, others = dropped(inputs, 0.5, seed=3), dropped(inputs, 0.5, seed=4)
    different = [factors[0, 0], factors[0, 1], factors[1, 0], others[0, 0]]
    for i, one in enumerate(different):
        for other in different[i + 1 :]:
            assert 0.4 < ((one != 0) == (other != 0)).double().mean() < 0.6


def test_the_backward_pass_drops_what_the_forward_pass_dropped():
    inputs = projections(keys=29, value_dim=16)
    factors = dropped(inputs, 0.4, seed=5)
    torch.manual_seed(5)
    got = with_gradients(bidir_attention(*inputs, dropout=0.4, implementation="fused")[0], inputs)
    _, coefficients = bidir_attention(*inputs, implementation="eager")
    expected = with_gradients((coefficients * factors) @ inputs[2], inputs)
    for theirs, ours in zip(expected, got, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


def test_dropout_of_grouped_heads_is_the_same_forward_and_backward():
    query, key, value = projections(heads=4, queries=29)[0], *projections()[1:]
    torch.manual_seed(5)
    got = attended(query, key, value, dropout=0.4)
    factors = dropped([query, *(x.repeat_interleave(2, 1) for x in (key, value))], 0.4, seed=5)
    _, coefficients = bidir_attention(query, key, value, implementation="eager")
    expected = (coefficients * factors) @ value.repeat_interleave(2, 1)
    inputs = [query, key, value]
    for theirs, ours in zip(with_gradients(expected, inputs), with_gradients(got, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)
