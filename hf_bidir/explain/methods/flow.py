"""Attention flow: the maximum flow from a token of the top layer to each input token."""

from collections.abc import Sequence

import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor
from tqdm import tqdm

from ..forward import ForwardCache, token_positions
from ..request import Request
from .attention import layers_up_to, magnitudes_of, source_of

RESIDUAL = 0.5  # capacity of the skip connection
UNIT = 2**30  # integer for a capacity of 1; the solver takes 32-bit integers


@torch.no_grad()
def attention_flow(
    attentions: Sequence[Tensor],
    keep: Tensor | None = None,
    source: int | Sequence[int] | Tensor = 0,
) -> Tensor:
    """Maximum flow from a token of the top layer to each input token through all layers.

    Each coefficient is an edge of capacity `|a_ij| / 2` to the layer below, and each token has an edge of capacity 1/2
    to itself, the skip connection (Abnar & Zuidema 2020, section 3). One flow is computed per input token. Rollout
    multiplies along a path; flow is limited by its bottleneck.

    Args:
        attentions, keep: as in `attention_rollout`.
        source: position of the token in the top layer, one for all examples or one per example.

    Returns:
        `[batch, length]` on the device of the coefficients: in [0, 1] if the magnitudes of each query's coefficients
        sum to at most 1. Zero at padding. Capacities are rounded to 1e-9.

    Raises:
        ValueError: as in `attention_rollout`, or a source that is not a token.
    """
    keep, layers = magnitudes_of(attentions, keep)
    flows = torch.zeros_like(layers[0, :, 0])
    for example, above in enumerate(token_positions(source, keep)[:, 0].tolist()):
        tokens = keep[example].nonzero().flatten().tolist()
        values = _flows(layers[:, example].cpu().double(), above, tokens)
        flows[example, tokens] = flows.new_tensor(values)
    return flows


def _flows(layers: Tensor, source: int, tokens: list[int]) -> list[float]:
    """The flow from a token above `layers` `[layers, queries, keys]`, bottom first, to each of the tokens below them.

    The nodes are the tokens below the layers, then those above each of them.
    """
    count, length = layers.shape[:2]
    capacities = (1 - RESIDUAL) * layers + RESIDUAL * torch.eye(length).to(layers)
    unit = UNIT / max(1.0, capacities.sum(2).max().item())  # the flow out of a node is such an integer too
    capacities[-1, torch.arange(length) != source] = 0
    integers = (capacities * unit).round().int().numpy()
    level, query, key = integers.nonzero()
    ends = ((level + 1) * length + query, level * length + key)
    size = (count + 1) * length
    edges = csr_array((integers[level, query, key], ends), shape=(size, size))
    flows = []
    for token in tqdm(tokens, desc="flow", unit="token", leave=False, delay=1):
        solved = maximum_flow(edges, count * length + source, token, method="dinic")
        flows.append(solved.flow_value / unit)
    return flows


@torch.no_grad()
def flow(cache: ForwardCache, request: Request) -> Tensor:
    """`attention_flow` from the position that the output is read from."""
    layers = layers_up_to(cache.coefficients, cache, request)
    source = source_of(layers[-1], cache, request)
    return attention_flow(layers, cache.keep, source)
