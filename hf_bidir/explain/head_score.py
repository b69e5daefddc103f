"""Why a head attends from a query to a key: the words behind their score, through the query and through the key."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.checkpoints.layer_hooks import edited_projections, in_evaluation
from hf_bidir.explain.api import parted, read
from hf_bidir.explain.inputs.text import Example, signed, told_apart
from hf_bidir.explain.methods.attnlrp import relevance_rules
from hf_bidir.explain.record import Record, attends_between_tokens, check_exists, model_within
from hf_bidir.explain.result import Alignment
from hf_bidir.explain.signed_maps import OWN_MAP, map_of
from hf_bidir.explain.target import InputFunction, token_level


def explain_head(
    model: PreTrainedModel,
    tokenizer: Any,
    text: Any,
    layer: int,
    head: int,
    *,
    query: int | str | None = None,
    key: int | str | None = None,
) -> Alignment:
    """Explain why one head attends from a query to a key: the words behind their score `q · k / √d`.

    The score is explained twice by AttnLRP: through the query, with the key constant, and through the key, with the
    query constant. Position embeddings and biases absorb a part of either. What a model adds to its scores, such as
    position biases, is left out.

    Args:
        model, tokenizer, text: as in `explain`, one text or conversation.
        layer, head: counted from 0; of layers that run several times each run counts.
        query, key: words of the text, as they are printed ("the (2 of 3)"), or their indices, special tokens included.
            By default the word that the output is read from, and the one with the coefficient of largest magnitude,
            special tokens left out. The last piece of a word is the query, its piece of the largest coefficient the
            key.

    Returns:
        Two rows over the words of the text: those behind the query, and those behind the key.

    Raises:
        ValueError: a layer, head, query or key that does not exist, no attention between tokens, or differential
            attention, in which a head has two scores.
        NoRule: as in `relevance`.
    """
    model = model_within(model, tokenizer)
    if not attends_between_tokens(model):
        raise ValueError(f"{type(model).__name__} has no attention between tokens; use the method contributions.")
    example = read(model, tokenizer, parted(tokenizer, text))
    record = Record(model, example.inputs)
    check_exists("layer", layer, len(record.coefficients))
    if map_of(record.values[layer][0]) is not OWN_MAP:
        raise ValueError(f"a head of {type(model).__name__} subtracts two maps, each with scores of its own.")
    coefficients = record.coefficients[layer][0].float()
    check_exists("head", head, len(coefficients))
    read_at = int(record.position[0])
    if kind_of(model).names_tokens:
        read_at = token_level(model, tokenizer, example, None, None)[1]
    place = read_at if query is None else int(_pieces(example, query).nonzero().max())
    row = coefficients[head, place].cpu()
    pieces = ~torch.tensor(example.special)[example.token_of_piece] if key is None else _pieces(example, key)
    attended = int(row.abs().masked_fill(~pieces, -1).argmax())
    score, through = _through(model, record, layer, head, place, attended)
    names = told_apart(example.tokens)
    query_name, key_name = (names[int(example.token_of_piece[at])] for at in (place, attended))
    return Alignment(
        source=example.tokens,
        written=[f"query {query_name}", f"key {key_name}"],
        explained=f"Layer {layer}, head {head}: for the query {query_name} the key {key_name} has the score "
        f"{signed(score)} and the coefficient {signed(row[attended].item())}.",
        what="Relevance (AttnLRP) of words for the score, through the query and through the key; it sums to "
        f"{' and '.join(map(signed, through.sum(1).tolist()))}, biases and position embeddings have the rest",
        scores={"relevance": example.by_token(through).cpu()},
        axes=("side of the score", "word"),
        first_length=len(example.tokens),
        how_to_read="+ (red) raises the score, − (blue) lowers it",
    )


def _pieces(example: Example, word: int | str) -> Tensor:
    """The positions of a word, boolean `[length]`."""
    if isinstance(word, str):
        names = told_apart(example.tokens)
        if word not in names and word not in example.tokens:
            raise ValueError(f"expected a word of the text, got {word!r}; it has {', '.join(names)}.")
        word = names.index(word) if word in names else example.tokens.index(word)
    check_exists("word", word, len(example.tokens))
    return example.token_of_piece == word


def _through(
    model: PreTrainedModel, record: Record, layer: int, head: int, query: int, key: int
) -> tuple[float, Tensor]:
    """The score of a pair, and its relevance through the query and through the key, `[2, length]`."""
    states: list[tuple[Tensor, Tensor]] = []

    def keep(*projected: Tensor) -> tuple[Tensor, ...]:
        states.append((projected[0], projected[1]))
        return projected

    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(model):
        function = InputFunction.of(model, record, None, None, one_point=True)
        start = function.start.detach().clone().requires_grad_()
        with edited_projections(model, keep), relevance_rules(model):
            function.run(start, function.rows)
        queries, keys = states[layer]
        own, other = queries[0, head, query], keys[0, head * keys.shape[1] // queries.shape[1], key]
        scaling = getattr(record.values[layer][0], "scaling", None) or own.shape[-1] ** -0.5
        found = [
            torch.autograd.grad((of * by.detach()).sum() * scaling, start, retain_graph=True)[0]
            for of, by in ((own, other), (other, own))
        ]
        rows = [function.by_token(start * gradient)[0] for gradient in found]
    return (own @ other).item() * scaling, torch.stack(rows).detach()
