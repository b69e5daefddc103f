"""The coefficients of one head for the query that the output is read from, shown beside the scores of a method."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_bidir.modeling.activations import upcast

from .forward import ForwardCache, pools_tokens
from .inputs.text import Example, told_apart
from .methods.attention import from_source, source_of
from .request import Request


@dataclass(frozen=True, eq=False)
class Coefficients:
    """The coefficients `a` of one query in one head.

    Attributes:
        layer, head: counted from 0.
        query: the query, in words.
        values: `[tokens]`, the sum over the pieces of a word: above 0 with softmax, of both signs with TanhMax.
    """

    layer: int
    head: int
    query: str
    values: Tensor

    @property
    def heading(self) -> str:
        return f"Coefficients of layer {self.layer}, head {self.head}, for {self.query}"

    @property
    def caption(self) -> str:
        """How to read the signs."""
        meaning = "All are positive: the head adds the values of all tokens"
        if (self.values < 0).any():
            meaning = "The head adds the values of red tokens and subtracts those of blue ones"
        return f"{meaning}. A token can support or oppose y with either sign."


@torch.no_grad()
def head_of_query(cache: ForwardCache, example: Example, request: Request) -> Coefficients:
    """The coefficients of a layer, by default the last one, and a head, by default the one that adds most to the query.

    That is the head with the largest `Σ_j |a_ij| ‖v_j‖`. The query is the requested position; by default the position
    that the output is read from, or for a sentence encoder the mean over the queries that are pooled.

    Args:
        cache: one text or image; layers that attend over different tokens are not supported.
    """
    index = len(cache.coefficients) - 1 if request.layer is None else request.layer
    layer = upcast(cache.coefficients[index])  # [1, heads, queries, keys]
    rows = torch.cat([from_source(maps, cache, request) for maps in layer.unbind(1)])  # [heads, keys]
    head = request.head or 0
    if request.head is None and len(rows) > 1:
        values = upcast(cache.values[index][1][0])  # [key heads, keys, head_dim]
        norms = values.norm(dim=-1).repeat_interleave(len(rows) // len(values), 0)
        head = int((rows.abs() * norms).sum(-1).argmax())
    if layer.shape[2] == 1:
        query = "its only query"
    elif pools_tokens(cache.model):
        query = "the mean over all queries"
    else:
        position = int(source_of(layer[:, 0], cache, request)[0])
        query = f"query {told_apart(example.tokens)[int(example.token_of_piece[position])]}"
    return Coefficients(index, head, query, example.by_token(rows[head]).cpu())
