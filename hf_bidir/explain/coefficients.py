"""The coefficients of one head for the query that the output is read from, shown beside the scores of a method."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_bidir.explain.forward import ForwardCache, takes_embedding
from hf_bidir.explain.inputs.text import Example, told_apart
from hf_bidir.explain.request import Request
from hf_bidir.modeling.activations import upcast


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
    that the output is read from, or the mean over the queries that are pooled: those of a sentence encoder, and all
    patches of an image without a class token.

    Args:
        cache: one text or image; layers that attend over different tokens are not supported.
    """
    index = len(cache.coefficients) - 1 if request.layer is None else request.layer
    maps = upcast(cache.coefficients[index][0])  # [heads, queries, keys]
    shares = _query_shares(cache, example, request, queries=maps.shape[1])
    rows = torch.einsum("q,hqk->hk", shares.to(maps), maps)
    head = request.head or 0
    if request.head is None and len(rows) > 1:
        head = strongest_head(rows.unsqueeze(1), cache.values[index][1][0])
    return Coefficients(index, head, _named(shares, example), example.by_token(rows[head]).cpu())


def strongest_head(coefficients: Tensor, values: Tensor) -> int:
    """The head of largest `Σ |a_ij| ‖v_j‖`, from `[heads, queries, keys]` and `[key heads, keys, head_dim]`."""
    norms = upcast(values).norm(dim=-1).repeat_interleave(len(coefficients) // len(values), 0)
    weighted = upcast(coefficients).abs().sum(1) * norms
    return int(weighted.sum(-1).argmax())


def _query_shares(cache: ForwardCache, example: Example, request: Request, queries: int) -> Tensor:
    """The share of each query `[queries]` in what is read."""
    if queries == 1:
        return torch.ones(1)
    if takes_embedding(cache.model):
        return cache.model.pooling_weights(cache.keep)[0].float()
    if request.position is None and example.grid is not None and not any(example.special):
        return torch.full((queries,), 1 / queries)
    position = cache.position[0].cpu() if request.position is None else torch.tensor(request.position)
    return torch.nn.functional.one_hot(position, queries).float()


def _named(shares: Tensor, example: Example) -> str:
    if len(shares) == 1:
        return "its only query"
    if (shares > 0).sum() > 1:
        return "the mean over all queries"
    token = int(example.token_of_piece[int(shares.argmax())])
    return f"query {told_apart(example.tokens)[token]}"
