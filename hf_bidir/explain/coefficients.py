"""The coefficients of one head for the query that the output is read from, shown beside the scores of a method."""

from dataclasses import dataclass
from typing import Any

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
        chosen: how the head was chosen, a clause; empty if it was asked for.
    """

    layer: int
    head: int
    query: str
    values: Tensor
    chosen: str = ""

    @property
    def heading(self) -> str:
        return f"Coefficients of layer {self.layer}, head {self.head}, for {self.query}"

    @property
    def caption(self) -> str:
        """How the head was chosen, and how to read its signs."""
        meaning = "All are positive: the head adds the values of all tokens"
        if (self.values < 0).any():
            meaning = "The head adds the values of red tokens and subtracts those of blue ones"
        return ". ".join(filter(None, [self.chosen, meaning, "A token can support or oppose y with either sign."]))


@torch.no_grad()
def head_of_query(cache: ForwardCache, example: Example, request: Request) -> Coefficients:
    """The coefficients of a layer, by default the last one, and a head, by default the one that adds most to the query.

    That is the head with the largest `Σ_j |a_ij| ‖v_j‖`, which takes neither a further pass nor a gradient. The query
    is the requested position; by default the position that the output is read from, or the mean over the queries that
    are pooled: those of a sentence encoder, and all patches of an image without a class token.

    Args:
        cache: one text or image; layers that attend over different tokens are not supported.
    """
    layers, head = cache.coefficients, request.head
    index = len(layers) - 1 if request.layer is None else request.layer
    shares, query = _queries(cache, example, layers[index].shape[2], request.position)
    maps = upcast(layers[index][0])
    rows = torch.einsum("q,hqk->hk", shares.to(maps), maps)
    chosen = ""
    if head is None and len(rows) > 1:
        head = strongest_head(rows.unsqueeze(1), cache.values[index][1][0])
        where = "the last layer" if request.layer is None else "this layer"
        chosen = f"Of the heads of {where}, it has the largest Σ |a| ‖v‖"
    return Coefficients(index, head or 0, query, example.by_token(rows[head or 0]).cpu(), chosen)


def strongest_head(coefficients: Tensor, values: Tensor) -> int:
    """The head of largest `Σ |a_ij| ‖v_j‖`, from `[heads, queries, keys]` and `[key heads, keys, head_dim]`."""
    norms = upcast(values).norm(dim=-1).repeat_interleave(len(coefficients) // len(values), 0)
    return int((upcast(coefficients).abs().sum(1) * norms).sum(-1).argmax())


def _queries(cache: ForwardCache, example: Example, count: int, position: Any) -> tuple[Tensor, str]:
    """The share of each query `[queries]` in what is read, and these queries in words."""
    if count == 1:
        return torch.ones(1, device=cache.keep.device), "its only query"
    if takes_embedding(cache.model):
        shares = cache.model.pooling_weights(cache.keep)[0].float()
    elif position is None and example.grid is not None and not any(example.special):
        shares = torch.full((count,), 1 / count, device=cache.keep.device)
    else:
        read = cache.position[0] if position is None else torch.tensor(position, device=cache.keep.device)
        shares = torch.nn.functional.one_hot(read, count).float()
    if (shares > 0).sum() > 1:
        return shares, "the mean over all queries"
    return shares, f"query {told_apart(example.tokens)[int(example.token_of_piece[int(shares.argmax())])]}"
