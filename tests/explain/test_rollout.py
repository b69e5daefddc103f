"""Rollout of coefficients and of gradient-weighted coefficients, against the published formulas in plain loops."""

import numpy as np
import pytest
import torch

from hf_bidir import tanhmax
from hf_bidir.explain import attention_rollout, gradient_rollout
from tests.explain.conftest import random_softmax


def signed_attentions(seed, length=4):
    generator = torch.Generator().manual_seed(seed)
    return [tanhmax(3 * torch.randn(2, 2, length, length, generator=generator)) for _ in range(3)]


def published_rollout(attentions, residual):
    """Abnar & Zuidema 2020, of magnitudes, one example: [layers, heads, length, length] -> [length, length]."""
    rollout = np.eye(attentions.shape[-1])
    for layer in np.abs(attentions):
        mixed = (1 - residual) * layer.mean(0) + residual * np.eye(layer.shape[-1])
        rollout = np.array([row / row.sum() for row in mixed]) @ rollout
    return rollout


@pytest.mark.parametrize("residual", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("attentions", [random_softmax(), signed_attentions(1)], ids=["softmax", "signed"])
def test_it_is_the_published_rollout_of_magnitudes(attentions, residual):
    rollout = attention_rollout(attentions, residual=residual)
    for example in range(2):
        expected = published_rollout(torch.stack(attentions)[:, example].numpy(), residual)
        np.testing.assert_allclose(rollout[example].numpy(), expected, atol=1e-6)


def test_half_precision_is_computed_in_single_precision_and_a_query_without_attention_has_no_row():
    nothing = torch.zeros(1, 1, 4, 4)
    assert not attention_rollout([nothing], residual=0.0).any()
    attentions = [layer.half() for layer in signed_attentions(2)]
    torch.testing.assert_close(attention_rollout(attentions).sum(-1), torch.ones(2, 4))


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
