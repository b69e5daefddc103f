"""Attention flow against the maximum flow of networkx."""

import networkx
import numpy as np
import pytest
import torch

from hf_bidir.explain import attention_flow
from tests.explain.conftest import random_softmax


def published_flow(attentions, example, source):
    """Abnar & Zuidema 2020: the flow from a top token to each input token, by networkx."""
    graph, top = networkx.DiGraph(), (len(attentions), source)
    for level, layer in enumerate(attentions):
        capacities = (layer[example].abs().mean(0) + torch.eye(layer.shape[-1])) / 2
        for (query, key), capacity in np.ndenumerate(capacities.numpy()):
            graph.add_edge((level + 1, query), (level, key), capacity=float(capacity))
    solver = networkx.algorithms.flow.edmonds_karp
    return [networkx.maximum_flow_value(graph, top, (0, key), flow_func=solver) for key in range(layer.shape[-1])]


@pytest.mark.parametrize("scale", [1, -10])  # capacities over 1 must fit into the solver's integers
def test_it_is_the_published_flow_of_magnitudes_for_a_source_of_each_example(scale):
    attentions = [scale * layer for layer in random_softmax()]
    flow = attention_flow(attentions, source=[3, 1])
    for example, source in enumerate((3, 1)):
        np.testing.assert_allclose(flow[example].numpy(), published_flow(attentions, example, source), atol=1e-6)


def test_a_padded_example_has_the_flow_it_has_alone():
    attentions = random_softmax()  # arbitrary values at padding
    flow = attention_flow(attentions, torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]), source=2)
    alone = attention_flow([layer[1:, :, 1:4, 1:4] for layer in attentions], source=1)
    torch.testing.assert_close(flow[1, 1:4], alone[0])
    assert not flow[1, [0, 4]].any()


@pytest.mark.parametrize(
    ("source", "message"),
    [(5, "from 0 to 4; got 5"), ([0, 1, 2], r"one per example \(2\)"), (4, "not padding")],
)
def test_a_source_that_is_no_token_is_refused(source, message):
    with pytest.raises(ValueError, match=message):
        attention_flow(random_softmax(), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]), source)
