"""Rollout of coefficients and of gradient-weighted coefficients, against the published formulas in plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bidir import tanhmax
from hf_bidir.explain import attention_rollout, gradient_rollout
from tests.explain.conftest import random_softmax


def signed_attentions(seed, length=4):
    generator = torch.Generator().manual_seed(seed)
    return [tanhmax(3 * torch.randn(2, 2, length, length, generator=generator)) for _ in range(3)]


def published_rollout(attentions):
    """Abnar & Zuidema 2020, one example: [layers, heads, length, length] -> [length, length]."""
    rollout = np.eye(attentions.shape[-1])
    for layer in attentions:
        mixed = layer.mean(0) + np.eye(layer.shape[-1])
        rollout = np.array([row / row.sum() for row in mixed]) @ rollout
    return rollout


def test_on_softmax_it_is_the_published_rollout():
    attentions = random_softmax()
    rollout = attention_rollout(attentions)
    for example in range(2):
        expected = published_rollout(torch.stack(attentions)[:, example].numpy())
        np.testing.assert_allclose(rollout[example].numpy(), expected, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), residual=st.floats(0, 1))
def test_rows_of_signed_coefficients_sum_to_one(seed, residual):
    attentions = [layer.half() for layer in signed_attentions(seed)]  # computed in single precision
    rollout = attention_rollout(attentions, residual=residual)
    assert rollout.min() >= 0
    torch.testing.assert_close(rollout.sum(-1), torch.ones(2, 4))


@pytest.mark.parametrize(
    ("residual", "rows", "sums"),
    [(0.5, [[1.2, 0.6], [0.1, 1.0]], [1.8, 1.1]), (0.2, [[0.36, 0.48], [0.08, 0.2]], [0.84, 0.28])],
)
def test_one_layer_has_the_magnitudes_of_the_formula(residual, rows, sums):
    attention = torch.tensor([[[[0.2, -0.6], [-0.1, 0.0]]]])
    expected = torch.tensor([rows]) / torch.tensor(sums)[:, None]
    torch.testing.assert_close(attention_rollout([attention], residual=residual), expected)


def test_a_padded_example_has_the_rollout_it_has_alone():
    attentions = signed_attentions(2, length=5)  # arbitrary values at padding
    keep = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    rollout = attention_rollout(attentions, keep)
    alone = attention_rollout([layer[1:, :, :3, :3] for layer in attentions])
    torch.testing.assert_close(rollout[1:, :3, :3], alone)
    assert not rollout[1, 3:].any()
    assert not rollout[1, :, 3:].any()


@pytest.mark.parametrize(
    ("attentions", "message"),
    [
        (None, r'set_attn_implementation\("eager"\)'),
        ((None, None), r'set_attn_implementation\("eager"\)'),
        ([torch.full((2, 1, 5, 5), torch.nan)], "finite coefficients"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(attentions, message):
    with pytest.raises(ValueError, match=message):
        attention_rollout(attentions)


def published_relevance(edges):
    """Chefer et al. 2021, equations 5 and 6, one example: [layers, heads, length, length]."""
    relevance = np.eye(edges.shape[-1])
    for layer in edges:
        relevance = relevance + np.maximum(layer, 0).mean(0) @ relevance
    return relevance


def test_gradient_rollout_is_the_published_relevance_for_y_minus_that_for_minus_y():
    edges = signed_attentions(7)
    relevance = gradient_rollout(edges)
    for example in range(2):
        of_example = torch.stack(edges)[:, example].numpy()
        expected = published_relevance(of_example) - published_relevance(-of_example)
        np.testing.assert_allclose(relevance[example].numpy(), expected, atol=1e-6)
