"""The prediction of a model and the explained number y, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.attentions import read_position
from hf_bidir.explain.checkpoint import Example
from hf_bidir.explain.colors import signed, visible
from hf_bidir.explain.readout import Readout, Target, choose_readout, names_tokens
from hf_bidir.explain.running import keep_mask_of, prepared_inputs, record_coefficients


@dataclass(frozen=True)
class Prediction:
    """What is explained of one example.

    Attributes:
        explained: the prediction and y, in words.
        value: y.
        target: the explained class or token; None for a model without a head.
    """

    explained: str
    value: float
    target: int | None


@torch.no_grad()
def predictions(
    model: PreTrainedModel,
    processor,
    inputs: Mapping[str, Tensor],
    target: Target,
    position: int | Tensor | None,
    windows: Sequence[int] | None = None,
) -> list[Prediction]:
    """The predictions for a batch.

    Args:
        windows: the number of windows of each example, one below the other in the batch; y is their mean. By default
            every row is an example of its own.
    """
    inputs = prepared_inputs(model, inputs)
    with in_evaluation(model):
        outputs = model(**inputs, return_dict=True)
        read: int | Tensor = 0
        if "logits" not in outputs:  # the position that a model without a head is read at
            _, coefficients = record_coefficients(model, inputs)
            read = read_position(coefficients[-1], keep_mask_of(inputs, coefficients[-1].shape[-1]))
    if windows is not None and "logits" in outputs and outputs.logits.dim() == 2:
        outputs = ModelOutput(
            logits=torch.stack([rows.float().mean(0) for rows in outputs.logits.split(list(windows))])
        )
    readout = choose_readout(model, outputs, target, position, read)
    values = readout(outputs).tolist()
    return [_described(model, processor, outputs, readout, row, value) for row, value in enumerate(values)]


def _described(
    model: PreTrainedModel, processor, outputs: ModelOutput, readout: Readout, row: int, value: float
) -> Prediction:
    place = None if readout.positions is None else int(readout.positions[row])
    if "logits" not in outputs:
        y = f"y, the hidden state of token {place} projected on its own direction, {signed(value)}"
        return Prediction(f"{type(model).__name__} has no head. Explained: {y}.", value, None)
    logits = outputs.logits[row] if place is None else outputs.logits[row, place]
    explained, predicted = int(readout.weights[row].argmax()), int(logits.argmax())
    if len(logits) == 1:
        return Prediction(f"Prediction, and explained: y = {signed(value)}.", value, explained)
    several = getattr(model.config, "problem_type", None) == "multi_label_classification"
    probabilities = logits.float().sigmoid() if several else logits.float().softmax(-1)
    name = _name_of(model, processor)
    mean = " minus the mean of all tokens" if names_tokens(model) else ""
    y = f"y, the logit of {name(explained)}{mean}, {signed(value)}"
    other = f" (probability {probabilities[explained]:.1%})" if explained != predicted else ""
    text = f"Prediction: {name(predicted)} ({probabilities[predicted]:.1%}). Explained: {y}{other}."
    return Prediction(text, value, explained)


def is_causal(model: PreTrainedModel) -> bool:
    """Whether the model predicts the next token."""
    return names_tokens(model) and "MaskedLM" not in type(model).__name__


def token_level(model, processor, example: Example, target, position) -> tuple[str | int | None, int | None]:
    """Target and position for language models: a token of the vocabulary, at the mask or after the text."""
    if not names_tokens(model):
        return target, position
    if position is None and is_causal(model):
        position = example.inputs["input_ids"].shape[1] - 1
    if position is None:
        masks = (example.inputs["input_ids"][0] == processor.mask_token_id).nonzero().flatten().tolist()
        if not masks:
            raise ValueError(
                f"expected {processor.mask_token} in the text of a masked language model, or --position; got neither."
            )
        position = masks[0]
    return (_word_piece(processor, target) if isinstance(target, str) else target), position


def _word_piece(tokenizer, word: str) -> int:
    """The id of a word as spelled in a text, or of a word piece."""
    if not word.strip():
        raise ValueError(f"expected a word of the vocabulary as target, got {word!r}.")
    spellings = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f" {word.lstrip()}", word)]
    for pieces in spellings:
        if len(pieces) == 1 and (pieces[0] != tokenizer.unk_token_id or word == tokenizer.unk_token):
            return pieces[0]
    token = tokenizer.convert_tokens_to_ids(word)
    if token is None or token == tokenizer.unk_token_id:
        known = [piece for piece in spellings[0] if piece != tokenizer.unk_token_id]
        parts = " + ".join(repr(tokenizer.decode([piece])) for piece in known)
        whole = " Or explain all of them with --continuation."
        split = f", but {parts}; choose one of them" if len(known) > 1 else ""
        raise ValueError(f"target {word!r} is not one token of the vocabulary{split}.{whole if split else ''}")
    return token


def _name_of(model: PreTrainedModel, processor):
    if names_tokens(model):
        return lambda index: f'"{_token(processor, index)}"'
    return lambda index: model.config.id2label[index]


def _token(tokenizer, index: int) -> str:
    """The token as spelled in a text, or the piece itself if that is empty, or its id if the tokenizer has none."""
    return visible(tokenizer.decode([index])) or tokenizer.convert_ids_to_tokens(index) or f"token {index}"
