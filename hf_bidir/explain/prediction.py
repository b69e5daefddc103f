"""The prediction of a model and the explained number y, in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.attentions import read_position
from hf_bidir.explain.checkpoint import Example, spelled
from hf_bidir.explain.colors import signed, visible
from hf_bidir.explain.readout import Readout, Target, choose_readout, has_head
from hf_bidir.explain.running import is_kept, keep_mask_of, prepared_inputs, recorded
from hf_bidir.explain.sentence_encoder import SentenceEncoder, takes_embedding
from hf_bidir.modeling.activations import upcast


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
    batch_size: int = 64,
) -> list[Prediction]:
    """The predictions for a batch.

    Args:
        windows: the number of windows of each example, one below the other in the batch; y is their mean. By default
            every row is an example of its own.
        batch_size: rows that run together.
    """
    inputs = prepared_inputs(model, inputs)
    with in_evaluation(model):
        parts = [_rows(model, part) for part in batches(inputs, batch_size)]
    name = parts[0][0]
    rows = torch.cat([rows for _, rows, _ in parts])
    read = None if parts[0][2] is None else torch.cat([read for *_, read in parts if read is not None])
    if windows is None:
        windows = [1] * len(rows)
    several, found = any(count > 1 for count in windows), []
    if several and read is not None:  # the rows of one example are read each at its own position
        outputs = ModelOutput(last_hidden_state=rows)
        values = choose_readout(model, outputs, target, position, read)(outputs)
        found = [own.mean().item() for own in values.split(list(windows))]
        first = torch.tensor([sum(windows[:index]) for index in range(len(windows))])
        rows, read = rows[first], read[first]
    elif several:
        rows = torch.stack([own.mean(0) for own in rows.split(list(windows))])
    outputs = ModelOutput({name: rows})
    readout = choose_readout(model, outputs, target, position, 0 if read is None else read)
    values = found or readout(outputs).tolist()
    return [_described(model, processor, outputs, readout, row, value) for row, value in enumerate(values)]


def batches(inputs: Mapping[str, Tensor], size: int) -> Iterator[dict[str, Tensor]]:
    """The rows of a batch in parts of at most `size`."""
    for start in range(0, len(next(iter(inputs.values()))), size):
        yield {name: value[start : start + size] for name, value in inputs.items()}


def _rows(model: PreTrainedModel, inputs: dict[str, Tensor]) -> tuple[str, Tensor, Tensor | None]:
    """The name of the explained output and its rows, in at least fp32 if they are logits.

    They are logits or an embedding; or the hidden states of a model without a head, with the position it is read at.
    """
    if has_head(model):
        outputs = recorded(model, inputs)[0] if is_kept(inputs) else model(**inputs, return_dict=True)
        if "logits" in outputs:
            return "logits", upcast(outputs.logits), None
    if takes_embedding(model):
        return "sentence_embedding", model(**inputs).sentence_embedding, None
    outputs, coefficients = recorded(model, inputs)
    read = read_position(coefficients[-1], keep_mask_of(inputs, coefficients[-1].shape[-1]))
    if "last_hidden_state" not in outputs:
        choose_readout(model, outputs, None, None)  # raises an error that names the outputs
    return "last_hidden_state", outputs.last_hidden_state, read


def _described(
    model: PreTrainedModel, processor, outputs: ModelOutput, readout: Readout, row: int, value: float
) -> Prediction:
    if isinstance(model, SentenceEncoder):
        return Prediction(_similarity(model, value), value, None)
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
    mean = " minus the mean of all tokens" if kind_of(model).names_tokens else ""
    y = f"y, the logit of {name(explained)}{mean}, {signed(value)}"
    other = f" (probability {probabilities[explained]:.1%})" if explained != predicted else ""
    text = f"Prediction: {name(predicted)} ({probabilities[predicted]:.1%}). Explained: {y}{other}."
    return Prediction(text, value, explained)


def _similarity(model: SentenceEncoder, value: float) -> str:
    """What is explained of a text's embedding, in words."""
    if model.reference is not None:
        what = f'{model.similarity} similarity to "{visible(model.against)}"'
        return f"Embedding ({model.described}). Explained: y, its {what}, {signed(value)}."
    y = f"y, the embedding before normalisation projected on its own direction, {signed(value)}"
    return f"Embedding ({model.described}). Explained: {y}; --against TEXT explains its similarity to a text."


def token_level(model, processor, example: Example, target, position) -> tuple[str | int | None, int | None]:
    """Target and position for language models: a token of the vocabulary, at the mask or after the text."""
    if not kind_of(model).names_tokens:
        return target, position
    if position is None and kind_of(model).causal:
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
    if kind_of(model).names_tokens:
        return lambda index: f'"{spelled(processor, [index])[0]}"'
    return lambda index: model.config.id2label[index]
