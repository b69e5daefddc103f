"""Attention flow against the maximum flow of networkx."""

import joblib
import networkx
import numpy as np
import pytest
import torch

from hf_bidir.explain import attention_flow
from tests.explain.conftest import random_softmax


def plain_flow(matrices, source):
    """Flow from a top token to each input token by networkx; matrices [layers, length, length] of capacities."""
    graph = networkx.DiGraph()
    for level, matrix in enumerate(matrices):
        for query, row in enumerate(matrix):
            for key, capacity in enumerate(row):
                graph.add_edge((level + 1, query), (level, key), capacity=float(capacity))
    top = (len(matrices), source)
    return [
        networkx.maximum_flow_value(graph, top, (0, key), flow_func=networkx.algorithms.flow.edmonds_karp)
        for key in range(len(matrices[0]))
    ]


def with_residual(attentions, example):
    return [0.5 * layer[example].mean(0).numpy() + 0.5 * np.eye(layer.shape[-1]) for layer in attentions]


def test_on_softmax_it_is_the_classic_flow():
    attentions = random_softmax()
    flow = attention_flow(attentions, source=3)
    for example in range(2):
        expected = plain_flow(with_residual(attentions, example), 3)
        np.testing.assert_allclose(flow[example].numpy(), expected, atol=1e-6)


def test_an_edge_carries_the_magnitude_of_a_negative_coefficient():
    assert attention_flow([torch.tensor([[[[0.0, -0.8], [0.0, 0.0]]]])])[0].tolist() == pytest.approx([0.5, 0.4])


def test_a_padded_example_has_the_flow_it_has_alone():
    attentions = random_softmax()  # arbitrary values at padding
    flow = attention_flow(attentions, torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]), source=2)
    alone = attention_flow([layer[1:, :, :3, :3] for layer in attentions], source=2)
    torch.testing.assert_close(flow[1, :3], alone[0])
    assert not flow[1, 3:].any()


def test_every_example_may_have_a_source_of_its_own():
    attentions = random_softmax()
    both = attention_flow(attentions, source=[4, 1])
    torch.testing.assert_close(both[0], attention_flow(attentions, source=4)[0])
    torch.testing.assert_close(both[1], attention_flow(attentions, source=1)[1])


def test_several_workers_find_the_same_flow():
    attentions = random_softmax()
    with joblib.parallel_config(backend="threading"):  # processes would take long to import everything
        found = attention_flow(attentions, workers=2)
    torch.testing.assert_close(found, attention_flow(attentions, workers=1))


def test_coefficients_beyond_one_do_not_overflow_the_solver():
    attentions = [10 * layer for layer in random_softmax(batch=1)]
    expected = plain_flow([0.5 * layer[0].mean(0).numpy() + 0.5 * np.eye(5) for layer in attentions], 0)
    assert max(expected) > 2
    np.testing.assert_allclose(attention_flow(attentions)[0].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attentions": [torch.full((2, 1, 5, 5), torch.nan)]}, "finite coefficients"),
        ({"source": 5}, "position of a token, not padding, from 0 to 4; got 5"),
        ({"source": [0, 1, 2]}, r"one per example \(2\)"),
        ({"source": 4, "keep": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])}, "position of a token"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(arguments, message):
    with pytest.raises(ValueError, match=message):
        attention_flow(**{"attentions": random_softmax(), **arguments})
