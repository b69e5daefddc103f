"""What is explained of an example, in words, and where: the place and the token of a language model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.explain.forward import ForwardCache, takes_embedding
from hf_bidir.explain.inputs.text import Example, signed, spelled, visible
from hf_bidir.explain.readout import Readout, cached_readout
from hf_bidir.explain.request import Request

LISTED = 20  # tokens at the beginning and at the end of a text in a message


@dataclass(frozen=True)
class Prediction:
    """What is explained of one example.

    Attributes:
        explained: the prediction and y, in words.
        value: y.
        target: the explained class or token; None for a model without a head.
        instead_of: the one that it is contrasted with.
    """

    explained: str
    value: float
    target: int | None = None
    instead_of: int | None = None


@torch.no_grad()
def predictions(cache: ForwardCache, request: Request, processor: Any) -> list[Prediction]:
    """The prediction for each row of a batch."""
    model, outputs = cache.model, cache.outputs
    readout = cached_readout(cache, request)
    rows = readout.rows(outputs)
    explained = []
    for index, value in enumerate(readout(outputs).tolist()):
        if readout.targets is None:
            explained.append(Prediction(_without_classes(model, readout, index, value), value))
        else:
            explained.append(_of_class(model, processor, readout, index, rows[index], value))
    return explained


def _without_classes(model: Any, readout: Readout, index: int, value: float) -> str:
    """The explained number of a hidden state or of an embedding, in words."""
    if not takes_embedding(model):
        assert readout.positions is not None
        state = f"the hidden state of token {int(readout.positions[index])} projected on its own direction"
        return f"{type(model).__name__} has no head. Explained: y, {state}, {signed(value)}."
    if model.reference is None:
        what = "the embedding before normalisation projected on its own direction"
        more = "; --against TEXT explains its similarity to a text"
    else:
        what, more = f'its {model.similarity} similarity to "{visible(model.against)}"', ""
    return f"Embedding ({model.described}). Explained: y, {what}, {signed(value)}{more}."


def _of_class(
    model: PreTrainedModel, processor: Any, readout: Readout, index: int, logits: Tensor, value: float
) -> Prediction:
    """The prediction from the logits `[classes]` of an example."""
    assert readout.targets is not None
    target, predicted = int(readout.targets[index]), int(logits.argmax())
    if len(logits) == 1:
        return Prediction(f"Prediction, and explained: y = {signed(value)}.", value, target)
    names_tokens = kind_of(model).names_tokens

    def name(label: int) -> str:
        """The name of a class, or a token of the vocabulary in quotation marks."""
        return f'"{spelled(processor, [label])[0]}"' if names_tokens else model.config.id2label[label]

    several = getattr(model.config, "problem_type", None) == "multi_label_classification"
    probabilities = logits.float().sigmoid() if several else logits.float().softmax(-1)
    y, foil = f"the logit of {name(target)}", None
    if readout.foils is not None:
        foil = int(readout.foils[index])
        y += f" minus that of {name(foil)}"
    elif names_tokens:
        y += " minus the mean of all tokens"
    other = f" ({name(target)} has {probabilities[target]:.1%})" if target != predicted else ""
    prediction = f"Prediction: {name(predicted)} ({probabilities[predicted]:.1%})."
    return Prediction(f"{prediction} Explained: y, {y}, {signed(value)}{other}.", value, target, foil)


def at_token(model: PreTrainedModel, tokenizer: Any, example: Example, request: Request) -> Request:
    """The request of a model with an output per token with its position: that of the mask, or the last one of a causal
    model; and with words of the vocabulary as token ids."""
    kind, ids = kind_of(model), example.inputs["input_ids"][0].tolist()
    position = request.position
    if position is None and kind.causal:
        position = len(ids) - 1
    elif position is None and kind.names_tokens and tokenizer.mask_token_id in ids:
        position = ids.index(tokenizer.mask_token_id)
    if position not in range(len(ids)):
        masked = f"{tokenizer.mask_token} in the text, or " if kind.names_tokens and not kind.causal else ""
        raise ValueError(
            f"expected {masked}the position of a token (--position): {_by_position(tokenizer, ids)}; got {position}."
        )
    if not kind.names_tokens:
        return replace(request, position=position)
    last = tokenizer.decode(ids[-1:])
    ends_apart = ids[-1] in tokenizer.all_special_ids or last[-1:].isspace()
    spaced = not (kind.causal and ends_apart)
    words: dict[str, Any] = {"target": request.target, "instead_of": request.instead_of}
    for name, word in words.items():
        words[name] = _token_of(tokenizer, word, spaced) if isinstance(word, str) else word
    return replace(request, position=position, **words)


def _by_position(tokenizer: Any, ids: Sequence[int]) -> str:
    """The tokens after their positions; of a long text the first and the last ones."""
    names = [f"{position} {token}" for position, token in enumerate(spelled(tokenizer, ids))]
    if len(names) > 2 * LISTED:
        names = [*names[:LISTED], "…", *names[-LISTED:]]
    return ", ".join(names)


def _token_of(tokenizer: Any, word: str, spaced: bool) -> int:
    """The id of a word as spelled in a text, after a space if `spaced`, or of a word piece."""
    if not word.strip():
        raise ValueError(f"expected a word of the vocabulary as target, got {word!r}.")
    pieces: list[int] = []
    for text in (f" {word.lstrip()}", word) if spaced else (word, f" {word.lstrip()}"):
        pieces = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(pieces) == 1 and pieces[0] != tokenizer.unk_token_id:
            return pieces[0]
    token = tokenizer.convert_tokens_to_ids(word)
    if token not in (None, tokenizer.unk_token_id):
        return token
    parts = " + ".join(map(repr, spelled(tokenizer, pieces)))
    raise ValueError(
        f"target {word!r} is not one token of the vocabulary, but {parts}; choose one of them, or explain all of them "
        "with --continuation."
    )
