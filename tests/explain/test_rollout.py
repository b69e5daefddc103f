"""Attention rollout: the classic one on softmax, and that of magnitudes on signed coefficients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bidir import tanhmax
from hf_bidir.explain import attention_rollout, gradient_rollout
from tests.explain.conftest import random_softmax


def published_rollout(attentions):
    """Abnar & Zuidema 2020 in plain loops, one example: [layers, heads, length, length] -> [length, length]."""
    rollout = np.eye(attentions.shape[-1])
    for layer in attentions:
        mixed = layer.mean(0) + np.eye(layer.shape[-1])
        mixed = np.array([row / row.sum() for row in mixed])
        rollout = np.array([[sum(mixed[i, k] * rollout[k, j] for k in range(len(mixed))) for j in range(len(mixed))]
                            for i in range(len(mixed))])  # fmt: skip
    return rollout


def signed_attentions(seed, layers=3, batch=2, heads=2, length=4):
    generator = torch.Generator().manual_seed(seed)
    return [tanhmax(3 * torch.randn(batch, heads, length, length, generator=generator)) for _ in range(layers)]


def test_on_softmax_it_is_the_published_rollout():
    attentions = random_softmax()
    rollout = attention_rollout(attentions)
    for example in range(2):
        expected = published_rollout(torch.stack(attentions)[:, example].numpy())
        np.testing.assert_allclose(rollout[example].numpy(), expected, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), residual=st.floats(0, 1), heads=st.sampled_from(["mean", "max", 0, 1]))
def test_rows_of_signed_coefficients_sum_to_one(seed, residual, heads):
    attentions = [layer.half() for layer in signed_attentions(seed)]  # computed in single precision
    rollout = attention_rollout(attentions, residual=residual, heads=heads)
    assert rollout.min() >= 0
    torch.testing.assert_close(rollout.sum(-1), torch.ones(2, 4))


def test_one_layer_has_the_magnitudes_of_the_formula():
    attention = torch.tensor([[[[0.2, -0.6], [-0.1, 0.0]]]])
    expected = torch.tensor([[[1.2, 0.6], [0.1, 1.0]]]) / torch.tensor([[[1.8], [1.1]]])
    torch.testing.assert_close(attention_rollout([attention]), expected)


def published_relevance(edges):
    """Chefer et al. 2021, equations 5 and 6, in plain loops, one example: [layers, heads, length, length]."""
    relevance = np.eye(edges.shape[-1])
    for layer in edges:
        weighted = np.mean([np.maximum(head, 0) for head in layer], 0)
        relevance = relevance + weighted @ relevance
    return relevance


def test_gradient_rollout_is_the_published_relevance_for_y_minus_that_for_minus_y():
    edges = signed_attentions(7)
    found = gradient_rollout(edges)
    for example in range(2):
        one = torch.stack(edges)[:, example].numpy()
        expected = published_relevance(one) - published_relevance(-one)
        np.testing.assert_allclose(found[example].numpy(), expected, atol=1e-6)


def test_a_padded_example_has_the_rollout_it_has_alone():
    attentions = signed_attentions(2, length=5)  # arbitrary values at padding
    keep = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    rollout = attention_rollout(attentions, keep)
    alone = attention_rollout([layer[1:, :, :3, :3] for layer in attentions])
    torch.testing.assert_close(rollout[1:, :3, :3], alone)
    assert not rollout[1, 3:].any()
    assert not rollout[1, :, 3:].any()


def test_heads_are_averaged_taken_at_their_largest_or_chosen():
    attention = torch.tensor([[[[0.0, 0.4], [0.0, 0.0]], [[0.0, -0.8], [0.0, 0.0]]]])

    def first_row(heads):
        return attention_rollout([attention], residual=0.5, heads=heads)[0, 0].tolist()

    assert first_row("mean") == pytest.approx([1 / 1.6, 0.6 / 1.6])
    assert first_row("max") == pytest.approx([1 / 1.8, 0.8 / 1.8])
    assert first_row(0) == pytest.approx([1 / 1.4, 0.4 / 1.4])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attentions": None}, r'set_attn_implementation\("eager"\)'),
        ({"attentions": {"logits": 1}}, r"pass its \.attentions"),
        ({"attentions": (None, None)}, r'set_attn_implementation\("eager"\)'),
        ({"attentions": ()}, r'set_attn_implementation\("eager"\)'),
        ({"attentions": [torch.ones(1, 2, 3, 3), torch.ones(1, 2, 4, 4)]}, r"\(1, 2, 3, 3\), \(1, 2, 4, 4\)"),
        ({"attentions": [torch.ones(3, 3)]}, r"\[batch, heads, length, length\]"),
        ({"keep": torch.ones(2, 7)}, r"keep \[batch, length\] = \(2, 5\).*\(2, 7\)"),
        ({"heads": 2}, "an index from 0 to 1"),
        ({"attentions": [torch.full((2, 1, 5, 5), torch.nan)]}, "finite coefficients"),
        ({"residual": 1.5}, r"in \[0, 1\]; got 1.5"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(arguments, message):
    with pytest.raises(ValueError, match=message):
        attention_rollout(**{"attentions": random_softmax(), **arguments})
