"""Attention flow: the maximum flow from a token of the top layer to each input token."""

import os
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from joblib import Parallel, delayed
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor
from tqdm import tqdm

from hf_bidir.explain.forward import ForwardCache, token_positions
from hf_bidir.explain.methods.attention import (
    Heads,
    check_attentions,
    check_finite,
    coefficients_of,
    heads_of,
    magnitudes_of,
    source_of,
)
from hf_bidir.explain.request import Request
from hf_bidir.modeling.activations import compute_dtype

UNIT = 2**30  # integer for a capacity of 1; the solver takes 32-bit integers
WORTH_A_POOL = 5e8  # edges times flows, below which starting processes may cost more than it saves


def attention_flow(
    attentions: Sequence[Tensor],
    keep: Tensor | None = None,
    source: int | Sequence[int] | Tensor = 0,
    residual: float = 0.5,
    *,
    heads: Heads = "mean",
    workers: int | None = None,
    progress: bool = True,
) -> Tensor:
    """Maximum flow from a token of the top layer to each input token through all layers.

    Each coefficient is an edge of capacity `(1 - r) |a_ij|` to the layer below, and each token has an edge of capacity
    `r` to itself, the skip connection (Abnar & Zuidema 2020, section 3). One flow is computed per input token. Rollout
    multiplies along a path; flow is limited by its bottleneck.

    Args:
        attentions, keep, residual, heads: as in `attention_rollout`.
        source: position of the token in the top layer, one for all examples or one per example.
        workers: number of processes; by default one per core for large inputs, otherwise one.

    Returns:
        `[batch, length]` on the device of the coefficients: in [0, 1] if the magnitudes of each query's coefficients
        sum to at most 1. Zero at padding. Capacities are rounded to 1e-9.

    Raises:
        ValueError: no coefficients, NaN, layers of different lengths, or a source that is not a token.
    """
    keep = check_attentions(attentions, keep, residual)
    sources = token_positions(source, keep).tolist()
    stacked = torch.stack([magnitudes_of(layer.detach(), heads) for layer in attentions], 1)
    stacked = stacked.masked_fill(~(keep[:, None, :, None] & keep[:, None, None]), 0)
    check_finite(stacked)
    stacked, present = stacked.cpu().double().numpy(), keep.cpu().numpy()
    graphs = [
        _Graph(layers[:, tokens][:, :, tokens], residual, int(tokens[:at].sum()))
        for layers, tokens, at in zip(stacked, present, sources, strict=True)
    ]
    flows = np.zeros(present.shape)
    flows[present] = np.fromiter(_all_flows(graphs, workers, progress), float)
    return torch.from_numpy(flows).to(attentions[0].device, compute_dtype(attentions[0].dtype))


def flow(cache: ForwardCache, request: Request) -> Tensor:
    """`attention_flow` from the position that the output is read from."""
    layers = coefficients_of(cache, request)
    return attention_flow(layers, cache.keep, source_of(layers[-1], cache, request), heads=heads_of(request))


class _Graph:
    """Flow network of one example; the node of a token is `level * length + token`, and level 0 is the input."""

    def __init__(self, layers: np.ndarray, residual: float, source: int):
        """Build the edges from `layers` `[layers, queries, keys]`, bottom first; `source` and they count no padding."""
        self.length = width = layers.shape[-1]
        steps = (1 - residual) * layers + residual * np.eye(width)
        # the flow out of a source must fit into the solver's integers too
        self.unit = UNIT / max(1.0, steps.sum(2).max())
        self.source = len(steps) * width + source
        self.reached = np.zeros((len(steps) + 1, width), bool)
        self.reached[-1, source] = True
        blocks = []
        for level in reversed(range(len(steps))):
            block = coo_array(np.rint(steps[level] * self.reached[level + 1, :, None] * self.unit).astype(np.int32))
            self.reached[level, block.col] = True  # unreachable edges are left out, because they slow the solver down
            blocks.append((block.data, block.row + (level + 1) * width, block.col + level * width))
        capacities, above, below = map(np.concatenate, zip(*blocks, strict=True))
        self.edges = csr_array((capacities, (above, below)), shape=(self.reached.size,) * 2)

    def flow_to(self, token: int) -> float:
        if not self.reached[0, token]:
            return 0.0
        return maximum_flow(self.edges, self.source, token, method="dinic").flow_value / self.unit


def _all_flows(graphs: list[_Graph], workers: int | None, progress: bool) -> Iterator[float]:
    """The flow to each token of each graph, in order."""
    work = sum(graph.edges.nnz * graph.length for graph in graphs)
    if workers is None:
        workers = (os.cpu_count() or 1) if work > WORTH_A_POOL else 1
    # one task solves several sinks, because its graph has to be sent to the process
    tasks = [
        (graph, range(start, min(start + 32, graph.length))) for graph in graphs for start in range(0, graph.length, 32)
    ]
    results = Parallel(n_jobs=workers, return_as="generator")(delayed(_flows)(*task) for task in tasks)
    count, hidden = sum(graph.length for graph in graphs), not progress
    with tqdm(total=count, desc="flow", unit="token", leave=False, delay=1, disable=hidden) as bar:
        for flows in results:
            bar.update(len(flows))
            yield from flows


def _flows(graph: _Graph, tokens: range) -> list[float]:
    return [graph.flow_to(token) for token in tokens]
