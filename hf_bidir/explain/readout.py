"""The explained number `y`, by default the logit of the predicted class: a function of outputs, and in words.

For language models `y` is the logit minus the mean over the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import SEVERAL_LABELS
from hf_bidir.common.errors import did_you_mean
from hf_bidir.modeling.activations import upcast

from .forward import AnyCache, chooses_text, names_tokens, reads_image_text, takes_embedding, token_positions
from .inputs.text import Answer, percent, signed, spelled, visible
from .request import Request, Target, check_position

ROWS = ("logits", "sentence_embedding", "last_hidden_state")  # outputs that are explained, the first one present
SPAN = (1, 0, 0, 1)  # weights of start and end logit at the first token of an answer, and of both at the last one
ANSWER = (
    "y is the start logit plus the end logit of the answer; its probability is that of its start times that of its end "
    "among all tokens."
)
LISTED_CLASSES = 20  # in a message
LEAST = 0.1  # nats: smaller changes of a logit do not count
LEAST_SHARE = 0.01  # the same for another y, a share of it
CLOSE = 0.1  # difference of two probabilities below which a classifier's prediction is a close call


@dataclass(frozen=True)
class Readout:
    """The explained number `y = Σ weights · row`, with the row of outputs at `positions`, if any.

    Attributes:
        weights: `[batch, entries]`, of one class, or a direction of the hidden state.
        positions: `[batch, places]`, for outputs with a row per token; the rows of several places follow each other.
        targets, foils: `[batch]`, the explained class, and the one that it is contrasted with, if any.
        answer: of a question and its context.
    """

    weights: Tensor
    positions: Tensor | None
    targets: Tensor | None = None
    foils: Tensor | None = None
    answer: Answer | None = None

    def rows(self, outputs: ModelOutput) -> Tensor:
        """The outputs that `y` is read from, `[batch, entries]`."""
        rows: Any = _explained(outputs)  # a tensor: readout_of refuses other outputs
        return rows if self.positions is None else _at(rows, self.positions)

    def __call__(self, outputs: ModelOutput) -> Tensor:
        """`y` `[batch]`, in at least fp32."""
        rows = self.rows(outputs).to(self.weights.dtype)
        return (rows * self.weights).sum(-1)

    def of(self, examples: Tensor) -> "Readout":
        """The readout of a batch composed of these examples, `[rows]`."""
        parts: dict[str, Any] = {
            name: value[examples] if isinstance(value, Tensor) else value for name, value in vars(self).items()
        }
        return Readout(**parts)


def readout_of(cache: AnyCache, request: Request, outputs: ModelOutput | None = None) -> Readout:
    """Resolve target and position of a request for the outputs in a cache, or for others of the same model.

    Without a head there is no target: `y` is the projection of the hidden state, or of the embedding, on itself. For a
    sentence encoder that is compared with a text it is the similarity. Raises ValueError for what does not exist.
    """
    model = cache.model
    outputs = cache.outputs if outputs is None else outputs
    check_position(model, request.position)
    rows = _explained(outputs)
    if rows is None or rows.dim() not in (2, 3):
        raise ValueError(
            f"expected logits of classes or, without a head, hidden states; {type(model).__name__} has outputs "
            f"{list(outputs)}. Explain model.base_model, the same model without its head."
        )
    positions = None
    if rows.dim() == 3:
        position: Any = cache.position if request.position is None else request.position
        positions = token_positions(position, rows.new_ones(rows.shape[:2]))
        rows = _at(rows, positions)
    rows = upcast(rows.detach())
    if "start_logits" in outputs:
        if rows.shape[1] != len(SPAN):
            raise ValueError(f"expected position [[first, last]], those of an answer, got {request.position}.")
        answer: Any = request.target
        return Readout(rows.new_tensor(SPAN).expand_as(rows), positions, answer=answer)
    if "logits" in outputs:
        return classes_readout(model, rows, request, positions)
    for name in ("instead_of", "target"):
        if (value := getattr(request, name)) is not None:
            raise ValueError(f"{type(model).__name__} has no classes; got {name} {value!r}, leave it out.")
    reference = getattr(model, "reference", None)  # the embedding that this one is compared with
    if reference is None:
        return Readout(nn.functional.normalize(rows, dim=-1), positions)
    return Readout(reference.to(rows).expand_as(rows), positions)


def _explained(outputs: ModelOutput) -> Tensor | None:
    if "start_logits" in outputs:
        return torch.stack([outputs["start_logits"], outputs["end_logits"]], -1)
    return next((outputs[name] for name in ROWS if name in outputs), None)


def _at(rows: Tensor, positions: Tensor) -> Tensor:
    return rows[torch.arange(len(rows), device=rows.device).unsqueeze(1), positions].flatten(1)


def classes_readout(
    model: PreTrainedModel, logits: Tensor, request: Request, positions: Tensor | None = None
) -> Readout:
    """The readout of logits `[batch, classes]`."""
    count = logits.shape[-1]
    targets = logits.argmax(-1) if request.target is None else _classes(model, logits, request.target)
    weights = nn.functional.one_hot(targets, count).to(logits.dtype)
    if request.instead_of is None:
        # a shift of all logits changes no prediction
        shift = 1 / count if names_tokens(model) else 0
        return Readout(weights - shift, positions, targets)
    foils = _classes(model, logits, request.instead_of)
    if (foils == targets).any():
        raise ValueError(
            f"expected instead_of to differ from the explained class or token, got {request.instead_of!r}; name "
            "another target or instead_of."
        )
    weights = weights - nn.functional.one_hot(foils, count).to(logits.dtype)
    return Readout(weights, positions, targets, foils)


def _classes(model: PreTrainedModel, logits: Tensor, target: Target) -> Tensor:
    """The index of a class for each row, `[batch]`."""
    batch, count = logits.shape
    labels = model.config.id2label
    known = list(labels.values()) if len(labels) == count <= LISTED_CLASSES else f"0 to {count - 1}"
    each = f", or one for each of {batch} examples" if batch > 1 else ""
    unknown = f"class {target!r} does not exist; choose one of {known}{each}."
    if isinstance(target, str):
        target = _class_named(labels, target, unknown)
    classes = torch.as_tensor(target, device=logits.device).long().reshape(-1)
    inside = (classes >= 0) & (classes < count)
    if len(classes) not in (1, batch) or not inside.all():
        raise ValueError(unknown)
    return classes.expand(batch)


def _class_named(labels: Mapping[int, str], name: str, unknown: str) -> int:
    """The class with this name, or with this number."""
    indices = [index for index, label in labels.items() if label == name]
    indices = indices or [index for index, label in labels.items() if label.casefold() == name.casefold()]
    if len(indices) > 1:
        both = " and ".join(map(str, indices))
        raise ValueError(f"class {name!r} is the name of {both}; choose one of them by its index.")
    if not indices and not name.isdecimal():
        raise ValueError(unknown + did_you_mean(name, list(labels.values())))
    return indices[0] if indices else int(name)


@dataclass(frozen=True)
class Prediction:
    """What is explained of one example.

    Attributes:
        explained: the explained class or token, y, and the prediction if it is another one, in words.
        value: y.
        prediction, probability: the predicted class or token, and its share; None for a model that predicts none.
        target: the explained class or token; None for a model without a head.
        instead_of: the one that it is contrasted with.
        definition: what y is, a sentence, unless `explained` says it.
        shares: the explained class or token, the one that it is contrasted with, and the predicted one if it is
            another, each with its probability.
        target_name: the explained class or token as text.
        share: its probability, if y is its logit.
    """

    explained: str
    value: float
    prediction: str | None = None
    probability: float | None = None
    target: int | None = None
    instead_of: int | None = None
    definition: str = ""
    shares: str = ""
    target_name: str | None = None
    share: float | None = None

    @property
    def least(self) -> float:
        """The least change of y that counts."""
        return abs(self.value) * LEAST_SHARE if self.probability is None else LEAST


@torch.no_grad()
def predictions(model: PreTrainedModel, processor: Any, readout: Readout, outputs: ModelOutput) -> list[Prediction]:
    """The prediction for each row of outputs."""
    rows, values = readout.rows(outputs), readout(outputs).tolist()
    if readout.answer is not None:
        return [_of_answer(readout.answer, outputs, values[0])]
    if readout.targets is not None:
        return [_of_class(model, processor, readout, index, rows[index], y) for index, y in enumerate(values)]
    return [Prediction(_without_classes(model, readout, index, y), y) for index, y in enumerate(values)]


def _of_answer(answer: Answer, outputs: Any, value: float) -> Prediction:
    """The prediction of an answer in a context."""
    others = outputs.start_logits.float().logsumexp(-1) + outputs.end_logits.float().logsumexp(-1)
    share = f'"{answer.text}", {percent((value - others).exp().item())}'
    explained = f"{share} (y = {signed(value)})."
    if answer.predicted not in (None, answer.text):
        explained += f' Prediction: "{answer.predicted}", {percent(answer.probability)}.'
    named: dict[str, Any] = {"definition": ANSWER, "shares": share, "target_name": answer.text}
    return Prediction(explained, value, answer.predicted, answer.probability, **named)


def _without_classes(model: Any, readout: Readout, index: int, value: float) -> str:
    """The explained number of a hidden state or of an embedding, in words."""
    if not takes_embedding(model):
        assert readout.positions is not None
        state = f"the hidden state of token {int(readout.positions[index, 0])} projected on its own direction"
        return f"{type(model).__name__} has no head. Explained: y, {state}, {signed(value)}."
    if model.reference is None:
        what = "the embedding before normalisation projected on its own direction"
    else:
        what = f'its {model.similarity} similarity to "{visible(model.against)}"'
    return f"Embedding ({model.described}). Explained: y, {what}, {signed(value)}."


def _of_class(
    model: PreTrainedModel, processor: Any, readout: Readout, index: int, logits: Tensor, value: float
) -> Prediction:
    """The prediction from the logits `[classes]` of an example."""
    assert readout.targets is not None
    target, foil = int(readout.targets[index]), None
    if len(logits) == 1 or model.config.problem_type == "regression":
        return Prediction(f"{_value_of(model, target, len(logits))}: y = {signed(value)}.", value, target=target)
    of_vocabulary = names_tokens(model)
    several = model.config.problem_type == SEVERAL_LABELS
    probabilities = (logits.float().sigmoid() if several else logits.float().softmax(-1)).tolist()
    predicted, second = logits.argsort(descending=True, stable=True)[:2].tolist()

    def name(label: int) -> str:
        """The name of a class, or a token of the vocabulary in quotation marks."""
        return f'"{spelled(processor, [label])[0].strip()}"' if of_vocabulary else model.config.id2label[label]

    def share(label: int) -> str:
        return f"{name(label)}, {percent(probabilities[label])}"

    shares, definition = share(target), f"y is the logit of {name(target)}"
    if readout.foils is not None:
        foil = int(readout.foils[index])
        shares += f", instead of {share(foil)}"
        definition += f" minus that of {name(foil)}"
    elif of_vocabulary:
        definition += " minus the mean of all tokens"
    explained = f"{shares} (y = {signed(value)})."
    if predicted not in (target, foil) and not several:
        explained += f" Prediction: {share(predicted)}."
        if len(logits) > 2:
            shares += f"; predicted: {share(predicted)}"
    probability = probabilities[predicted]
    rival = 1 - probability if several else probabilities[second]
    if abs(probability - rival) < CLOSE and not of_vocabulary:
        explained += f" A close call{'' if several else f' with {name(second)}'}."
    return Prediction(
        explained=explained,
        value=value,
        prediction=name(predicted),
        probability=probability,
        target=target,
        instead_of=foil,
        definition=f"{definition}.",
        shares=shares,
        target_name=name(target),
        share=probabilities[target] if foil is None else None,
    )


def _value_of(model: PreTrainedModel, target: int, count: int) -> str:
    """One of a count of numbers that are no shares of classes, in words."""
    label = model.config.id2label[target]
    if reads_image_text(model):
        return f'Explained: the similarity of the image to "{label}"'
    if chooses_text(model):
        return "Explained: the logit of the choice"
    return f"Prediction{f' of {label}' if count > 1 else ''}, and explained"
