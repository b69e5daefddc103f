"""The coefficients of one head for the query that the output is read from, shown beside the scores of a method."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_bidir.explain.inputs.text import Example, told_apart
from hf_bidir.explain.record import Record
from hf_bidir.explain.target import takes_embedding
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
def head_of_query(
    record: Record, example: Example, position: int | None = None, layer: int | None = None, head: int | None = None
) -> Coefficients:
    """The coefficients of a layer, by default the last one, and a head, by default the one that adds most to the query.

    That is the head with the largest `Σ_j |a_ij| ‖v_j‖`, which takes neither a further pass nor a gradient.

    Args:
        record: one text or image; layers that attend over different tokens are not supported.
        position: the query; by default the position that the output is read from, or the mean over the queries that
            are pooled: those of a sentence encoder, and all patches of an image without a class token.
    """
    layers, last = record.coefficients, layer is None
    index = len(layers) - 1 if layer is None else layer
    shares, query = _queries(record, example, layers[index].shape[2], position)
    maps = upcast(layers[index][0])
    rows = torch.einsum("q,hqk->hk", shares.to(maps), maps)
    chosen = ""
    if head is None and len(rows) > 1:
        head = strongest_head(rows.unsqueeze(1), record.values[index][1][0])
        chosen = f"Of the heads of {'the last layer' if last else 'this layer'}, it has the largest Σ |a| ‖v‖"
    return Coefficients(index, head or 0, query, example.by_token(rows[head or 0]).cpu(), chosen)


def strongest_head(coefficients: Tensor, values: Tensor) -> int:
    """The head of largest `Σ |a_ij| ‖v_j‖`, from `[heads, queries, keys]` and `[key heads, keys, head_dim]`."""
    norms = upcast(values).norm(dim=-1).repeat_interleave(len(coefficients) // len(values), 0)
    return int((upcast(coefficients).abs().sum(1) * norms).sum(-1).argmax())


def _queries(record: Record, example: Example, count: int, position: int | None) -> tuple[Tensor, str]:
    """The share of each query `[queries]` in what is read, and these queries in words."""
    if count == 1:
        return torch.ones(1, device=record.keep.device), "its only query"
    if takes_embedding(record.model):
        shares = record.model.pooling_weights(record.keep)[0].float()
    elif position is None and example.grid is not None and not any(example.special):
        shares = torch.full((count,), 1 / count, device=record.keep.device)
    else:
        read = record.position[0] if position is None else torch.tensor(position, device=record.keep.device)
        shares = torch.nn.functional.one_hot(read, count).float()
    if (shares > 0).sum() > 1:
        return shares, "the mean over all queries"
    return shares, f"query {told_apart(example.tokens)[int(example.token_of_piece[int(shares.argmax())])]}"
