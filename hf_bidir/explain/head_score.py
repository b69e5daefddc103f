"""Why a head attends from a query to a key: the words behind their score, through the query and through the key."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_projections, in_evaluation
from hf_bidir.explain.api import read
from hf_bidir.explain.forward import ForwardCache, attends_between_tokens, check_exists, is_differential, model_within
from hf_bidir.explain.inputs.text import Example, signed, told_apart
from hf_bidir.explain.methods.attnlrp import relevance_rules
from hf_bidir.explain.readout import InputFunction
from hf_bidir.explain.request import Request
from hf_bidir.explain.result import Alignment


def explain_head(
    model: PreTrainedModel, tokenizer: Any, text: Any, head: tuple[int, int], query: str, key: str | None = None
) -> Alignment:
    """Explain why one head attends from a query to a key: the words behind their score `q · k / √d`.

    The score is explained twice by AttnLRP: through the query, with the key constant, and through the key, with the
    query constant. Position embeddings and biases absorb a part of either. What a model adds to its scores, such as
    position biases, is left out.

    Args:
        model, tokenizer, text: as in `explain`, one text or conversation.
        head: its layer and its index in the layer.
        query, key: words of the text, as they are printed ("the (2 of 3)"). The last piece of the query attends; by
            default the key is the word with the coefficient of largest magnitude, special tokens left out.

    Returns:
        Two rows over the words of the text: those behind the query, and those behind the key.

    Raises:
        ValueError: a layer, head or word that does not exist, or differential attention, in which a head has two
            scores.
        NoRule: as in `relevance`.
    """
    model, (layer, index) = model_within(model, tokenizer), head
    if not attends_between_tokens(model):
        raise ValueError(f"{type(model).__name__} has no attention between tokens; use the method contributions.")
    example = read(model, tokenizer, text, Request())
    cache = ForwardCache(model, example.inputs)
    check_exists("layer", layer, len(cache.coefficients))
    if is_differential(cache.values[layer][0]):
        raise ValueError(f"a head of {type(model).__name__} subtracts two maps, each with scores of its own.")
    coefficients = cache.coefficients[layer][0].float().cpu()
    check_exists("head", index, len(coefficients))
    names = told_apart(example.tokens)
    attending = int(_pieces(example, names, query).nonzero().max())
    special = torch.tensor(example.special)[example.token_of_piece]
    allowed = ~special if key is None else _pieces(example, names, key)
    row = coefficients[index, attending]
    attended = int(row.abs().masked_fill(~allowed, -1).argmax())
    score, sides = _through(cache, head, attending, attended)
    query_name, key_name = (names[int(example.token_of_piece[piece])] for piece in (attending, attended))
    sums = " and ".join(map(signed, sides.sum(1).tolist()))
    return Alignment(
        source=example.tokens,
        written=[f"query {query_name}", f"key {key_name}"],
        explained=f"Layer {layer}, head {index}: for the query {query_name} the key {key_name} has the score "
        f"{signed(score)} and the coefficient {signed(row[attended].item())}.",
        what="Relevance (AttnLRP) of words for the score, through the query and through the key; it sums to "
        f"{sums}, biases and position embeddings have the rest",
        scores={"relevance": example.by_token(sides).cpu()},
        first_length=len(example.tokens),
        how_to_read="+ (red) raises the score, − (blue) lowers it",
    )


def _pieces(example: Example, names: list[str], word: str) -> Tensor:
    """The positions of a word, boolean `[length]`."""
    if word not in names and word not in example.tokens:
        raise ValueError(f"expected a word of the text, got {word!r}; it has {', '.join(names)}.")
    return example.token_of_piece == (names if word in names else example.tokens).index(word)


def _through(cache: ForwardCache, head: tuple[int, int], attending: int, attended: int) -> tuple[float, Tensor]:
    """The score of a pair, and its relevance through the query and through the key, `[2, length]`."""
    layer, index = head
    states: list[tuple[Tensor, ...]] = []

    def keep(*projected: Tensor) -> tuple[Tensor, ...]:
        states.append(projected)
        return projected

    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(cache.model):
        function = InputFunction(cache, Request(), one_point=True)
        start = function.start.detach().clone().requires_grad_()
        with edited_projections(cache.model, keep), relevance_rules(cache.model):
            function.run(start, function.rows)
        queries, keys, _ = states[layer]
        query = queries[0, index, attending]
        key = keys[0, index // (queries.shape[1] // keys.shape[1]), attended]  # which several heads may share
        scaling = getattr(cache.values[layer][0], "scaling", None) or len(query) ** -0.5
        rows = []
        for y in (query @ key.detach(), query.detach() @ key):
            (gradient,) = torch.autograd.grad(y * scaling, start, retain_graph=True)
            rows.append(function.by_token(start * gradient)[0])
    return (query @ key).item() * scaling, torch.stack(rows)
