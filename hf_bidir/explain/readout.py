"""The explained number `y`, by default the logit of the predicted class: of outputs, of an input, and in words.

For language models `y` is the logit minus the mean over the vocabulary.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import kind_of, takes_one_row
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.explain.forward import (
    ForwardCache,
    SegmentedInputs,
    leading_tokens,
    patch_size,
    reads_images,
    takes_embedding,
    token_positions,
    units_of,
)
from hf_bidir.explain.inputs.text import Example, signed, spelled, visible
from hf_bidir.explain.request import Request, Target, check_position
from hf_bidir.modeling.activations import upcast

LISTED = 20  # tokens at the beginning and at the end of a text in a message
ROWS = ("logits", "sentence_embedding", "last_hidden_state")  # outputs that are explained, the first one present


@dataclass(frozen=True)
class Readout:
    """The explained number `y = Σ weights · row`, with the row of outputs at `positions`, if any."""

    weights: Tensor  # [batch, entries]: one class, or a direction of the hidden state
    positions: Tensor | None  # [batch]: for outputs with a row per token

    def __call__(self, outputs: ModelOutput) -> Tensor:
        """`y` `[batch]`, in at least fp32."""
        rows: Any = _rows(outputs)  # a tensor: readout_of refuses other outputs
        if self.positions is not None:
            rows = rows[torch.arange(len(rows), device=rows.device), self.positions]
        return (rows.to(self.weights.dtype) * self.weights).sum(-1)

    def of(self, examples: Tensor) -> "Readout":
        """The readout of a batch composed of these examples, `[rows]`."""
        return Readout(self.weights[examples], None if self.positions is None else self.positions[examples])


def readout_of(model: PreTrainedModel, outputs: ModelOutput, request: Request, default: int | Tensor = 0) -> Readout:
    """Resolve target and position of a request, or the `default` position, for the outputs of a batch.

    Without a head there is no target: `y` is the projection of the hidden state, or of the embedding, on itself. For a
    sentence encoder that is compared with a text it is the similarity. Raises ValueError for what does not exist.
    """
    check_position(model, request.position)
    rows = _rows(outputs)
    if rows is None or rows.dim() not in (2, 3):
        raise ValueError(
            f"expected logits of classes or, without a head, hidden states; {type(model).__name__} has outputs "
            f"{list(outputs)}. Explain model.base_model, the same model without its head."
        )
    positions = None
    if rows.dim() == 3:
        everywhere = torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)
        positions = token_positions(default if request.position is None else request.position, everywhere)
        rows = rows[torch.arange(len(rows), device=rows.device), positions]
    rows = upcast(rows.detach())
    if "logits" in outputs:
        return Readout(_class_weights(model, rows, request), positions)
    for name in ("instead_of", "target"):
        if (value := getattr(request, name)) is not None:
            raise ValueError(f"{type(model).__name__} has no classes; got {name} {value!r}, leave it out.")
    reference = getattr(model, "reference", None)  # the embedding that this one is compared with
    if reference is not None:
        return Readout(reference.to(rows).expand_as(rows), positions)
    return Readout(nn.functional.normalize(rows, dim=-1), positions)


def cached_readout(cache: ForwardCache, request: Request) -> Readout:
    """The readout of the outputs in a cache."""
    return readout_of(cache.model, cache.outputs, request, cache.position)


def _class_weights(model: PreTrainedModel, logits: Tensor, request: Request) -> Tensor:
    """The weights of the logits `[batch, classes]` in `y`."""
    classes = _classes(model, logits, request.target)
    weights = nn.functional.one_hot(classes, logits.shape[-1]).to(logits.dtype)
    if request.instead_of is not None:
        foils = _classes(model, logits, request.instead_of)
        if (foils == classes).any():
            raise ValueError(
                "expected instead_of to differ from the explained class or token, got "
                f"{request.instead_of!r}; name another target or instead_of."
            )
        return weights - nn.functional.one_hot(foils, logits.shape[-1]).to(logits.dtype)
    if kind_of(model).names_tokens:  # a shift of all logits changes no prediction
        return weights - 1 / logits.shape[-1]
    return weights


def has_head(model: PreTrainedModel) -> bool:
    """Whether the model has logits, as its name says."""
    return "For" in type(model).__name__ or type(model).__name__.endswith("LMHeadModel")


def reads_beginning(model: PreTrainedModel) -> bool:
    """Whether a text that is too long is cut: the model predicts tokens, or embeds texts as sentence-transformers."""
    return kind_of(model).per_token or takes_embedding(model)


def _rows(outputs: ModelOutput) -> Tensor | None:
    return next((outputs[name] for name in ROWS if name in outputs), None)


def _classes(model: PreTrainedModel, logits: Tensor, target: Target) -> Tensor:
    if target is None:
        return logits.argmax(-1)
    count = logits.shape[-1]
    names = {str(name): int(index) for index, name in model.config.id2label.items()}
    known = list(names) if len(names) == count <= 20 else f"0 to {count - 1}"
    if isinstance(target, str):
        alike = [int(index) for index, name in model.config.id2label.items() if str(name) == target]
        if len(alike) > 1:
            both = " and ".join(map(str, alike))
            raise ValueError(f"target {target!r} is the name of the classes {both}; choose one of them by its index.")
        index = names.get(target, int(target) if target.isdecimal() else None)
        if index is None:
            from hf_bidir.common.errors import did_you_mean

            close = did_you_mean(target, list(names))
            raise ValueError(f"target {target!r} does not exist; choose one of {known}.{close}")
        target = index
    classes = torch.as_tensor(target, device=logits.device)
    if classes.numel() not in (1, len(logits)) or classes.is_floating_point():
        raise ValueError(f"expected one target, or one per example ({len(logits)}), got {target!r}.")
    if classes.min() < 0 or classes.max() >= count:
        raise ValueError(f"target {target!r} does not exist; choose one of {known}.")
    return classes.long().reshape(-1).expand(len(logits))


@dataclass(frozen=True)
class InputFunction:
    """A model's `y` as a function of the input tensor, in the form that captum calls."""

    model: PreTrainedModel
    inputs: dict[str, Tensor]
    start: Tensor  # word embeddings [batch, length, hidden], or pixels
    length: int  # tokens in the model's sequence
    request: Request
    readout: Readout | None = None  # None: that of the outputs of `score`, for a function of one point
    sinks: Tensor | None = None  # boolean [batch, length]: tokens that are part of the baseline

    @classmethod
    @torch.no_grad()
    def of(
        cls, cache: ForwardCache, request: Request, *, one_point: bool = False, keep_first: bool | None = None
    ) -> "InputFunction":
        """The function of these inputs, at `one_point` only: saves a forward pass for texts and models with logits.

        `keep_first`: whether the first token of a text is part of the baseline; None: where attention is causal.
        """
        model, inputs = cache.model, cache.inputs
        start = inputs["pixel_values"] if reads_images(model) else model.get_input_embeddings()(inputs["input_ids"])
        if one_point and not cache.shared and not reads_images(model) and has_head(model):
            return cls(model, inputs, start, start.shape[1], request)
        first = cache.keep.long().argmax(-1)  # after padding on the left
        causal = cache.position > first
        sinks = nn.functional.one_hot(first, cache.keep.shape[1]).bool()
        sinks = sinks & causal.unsqueeze(1) if keep_first is None else sinks & keep_first
        return cls(model, inputs, start, cache.length, request, cached_readout(cache, request), sinks)

    @property
    def rows(self) -> Tensor:
        """The index of each example; captum repeats it together with the example."""
        return torch.arange(len(self.start), device=self.start.device)

    @property
    def baseline(self) -> Tensor:
        """Images of zeros, or padding at every token except the sinks of causal attention, the first of each text.

        Without a sink, y changes too abruptly for an integral of few steps.
        """
        if self.start.dim() == 4:
            return torch.zeros_like(self.start)
        padding = getattr(self.model.config.get_text_config(), "pad_token_id", None)
        known = isinstance(padding, int) and 0 <= padding < self.model.get_input_embeddings().num_embeddings
        token = torch.tensor([padding if known else 0], device=self.start.device)
        padded = self.model.get_input_embeddings()(token).detach().expand_as(self.start)
        if self.sinks is None:  # a function of one point
            return padded
        return torch.where(self.sinks[..., None], self.start, padded)

    def score(self, start: Tensor, rows: Tensor) -> Tensor:
        return self._read(self.run(start, rows), rows)

    def run(self, start: Tensor, rows: Tensor) -> ModelOutput:
        """The outputs of the model for these input tensors of the rows."""
        if len(rows) > 1 and takes_one_row(self.model):
            each = [self.run(*row) for row in zip(start.split(1), rows.split(1), strict=True)]
            return ModelOutput(logits=torch.cat([outputs.logits for outputs in each]))
        inputs = {name: value[rows] for name, value in self.inputs.items()}
        start = start.to(self.start.dtype)  # captum adds noise in single precision
        if start.dim() == 4:
            return self.model(**inputs | {"pixel_values": start}, return_dict=True)
        # no inputs_embeds: some models find padding, or the position to read, by token id
        with hooked([self.model.get_input_embeddings()], after=lambda *_: start.clone()):
            return self.model(**inputs, return_dict=True)

    def _read(self, outputs: ModelOutput, rows: Tensor) -> Tensor:
        if self.readout is None:
            return readout_of(self.model, outputs, self.request)(outputs)
        return self.readout.of(rows)(outputs)

    def by_token(self, scores: Tensor) -> Tensor:
        """Sum scores of the shape of `start` to `[batch, length]`."""
        scores = scores.detach()
        if scores.dim() == 3:
            return scores.sum(-1)
        height, width = patch_size(self.model)
        by_patch = scores.unfold(2, height, height).unfold(3, width, width).sum((1, 4, 5)).flatten(1)
        leading = leading_tokens(self.model, self.start, self.length)
        return nn.functional.pad(by_patch, (leading, 0))


@dataclass(frozen=True)
class Prediction:
    """What is explained of one example."""

    explained: str  # the prediction and y, in words
    value: float  # y
    target: int | None  # the explained class or token; None for a model without a head
    instead_of: int | None = None  # the one that it is contrasted with


@torch.no_grad()
def predictions(
    processor: Any, caches: Iterable[ForwardCache], request: Request, windows: Sequence[int] = ()
) -> list[Prediction]:
    """The predictions for a batch, in parts that run together.

    y is the mean over the `windows` of an example, which are rows below each other; by default each row is an example.
    """
    name, parts, places = "", [], []
    for cache in caches:
        model = cache.model
        with in_evaluation(model):
            name, rows, positions = _explained_rows(cache)
        parts.append(rows)
        places.append(positions)
    rows = torch.cat(parts)
    counts = list(windows) or [1] * len(rows)
    if name == "last_hidden_state":
        return _hidden_predictions(model, rows, torch.cat(places), request, counts)
    if len(counts) < len(rows):
        rows = torch.stack([part.mean(0) for part in rows.split(counts)])
    outputs = ModelOutput({name: rows})
    readout = readout_of(model, outputs, request)
    return [
        _described(model, processor, outputs, readout, row, value)
        for row, value in enumerate(readout(outputs).tolist())
    ]


def batches(inputs: Mapping[str, Tensor], size: int) -> Iterator[dict[str, Tensor]]:
    """The rows of a batch in parts of at most `size`, with their segments."""
    units = units_of(inputs)
    for start in range(0, len(next(iter(inputs.values()))), size):
        rows = slice(start, start + size)
        part = {name: value[rows] for name, value in inputs.items()}
        yield part if units is None else SegmentedInputs(part, units[rows])


def _explained_rows(cache: ForwardCache) -> tuple[str, Tensor, Tensor]:
    """The name of the explained output, its rows, and of hidden states the position that they are read at."""
    model = cache.model
    if cache.shared or not (has_head(model) or takes_embedding(model)):
        outputs = cache.outputs
    else:  # without coefficients, which are large
        outputs = model(**cache.inputs, return_dict=True)
    nowhere = torch.empty(0)
    if "logits" in outputs:
        return "logits", upcast(outputs.logits), nowhere
    if takes_embedding(model):
        return "sentence_embedding", outputs.sentence_embedding, nowhere
    if "last_hidden_state" not in outputs:
        readout_of(model, outputs, Request())  # raises an error that names the outputs
    return "last_hidden_state", outputs.last_hidden_state, cache.position


def _hidden_predictions(
    model: PreTrainedModel, rows: Tensor, places: Tensor, request: Request, counts: list[int]
) -> list[Prediction]:
    """The predictions of a model without a head, whose windows are read each at its own position."""
    outputs = ModelOutput(last_hidden_state=rows)
    readout = readout_of(model, outputs, request, places)
    assert readout.positions is not None
    parts = zip(readout(outputs).split(counts), readout.positions.split(counts), strict=True)
    explained = []
    for values, positions in parts:
        value = values.mean().item()
        y = f"y, the hidden state of token {int(positions[0])} projected on its own direction, {signed(value)}"
        explained.append(Prediction(f"{type(model).__name__} has no head. Explained: {y}.", value, None))
    return explained


def _described(model: Any, processor, outputs: ModelOutput, readout: Readout, row: int, value: float) -> Prediction:
    if takes_embedding(model):
        what = "the embedding before normalisation projected on its own direction"
        more = "; --against TEXT explains its similarity to a text"
        if model.reference is not None:
            what, more = f'its {model.similarity} similarity to "{visible(model.against)}"', ""
        return Prediction(f"Embedding ({model.described}). Explained: y, {what}, {signed(value)}{more}.", value, None)
    place = None if readout.positions is None else int(readout.positions[row])
    logits = outputs.logits[row] if place is None else outputs.logits[row, place]
    explained, predicted = int(readout.weights[row].argmax()), int(logits.argmax())
    if len(logits) == 1:
        return Prediction(f"Prediction, and explained: y = {signed(value)}.", value, explained)
    several = getattr(model.config, "problem_type", None) == "multi_label_classification"
    probabilities = logits.float().sigmoid() if several else logits.float().softmax(-1)

    def name(index: int) -> str:
        """The name of a class, or a token of the vocabulary in quotation marks."""
        tokens = kind_of(model).names_tokens
        return f'"{spelled(processor, [index])[0]}"' if tokens else model.config.id2label[index]

    foil = int(readout.weights[row].argmin()) if readout.weights[row].min() == -1 else None  # of a contrast
    less = " minus the mean of all tokens" if kind_of(model).names_tokens else ""
    less = less if foil is None else f" minus that of {name(foil)}"
    y = f"y, the logit of {name(explained)}{less}, {signed(value)}"
    other = f" ({name(explained)} has {probabilities[explained]:.1%})" if explained != predicted else ""
    text = f"Prediction: {name(predicted)} ({probabilities[predicted]:.1%}). Explained: {y}{other}."
    return Prediction(text, value, explained, foil)


def at_token(model: PreTrainedModel, processor: Any, example: Example, request: Request) -> Request:
    """The request with a token of the vocabulary as target, at the mask or after the text, for language models."""
    kind = kind_of(model)
    if not kind.per_token:
        return request
    ids = example.inputs["input_ids"][0].tolist()
    position = request.position
    if position is None and kind.causal:
        position = len(ids) - 1
    if position is None and kind.names_tokens and processor.mask_token_id in ids:
        position = ids.index(processor.mask_token_id)
    if position not in range(len(ids)):
        masked = f"{processor.mask_token} in the text, or " if kind.names_tokens and not kind.causal else ""
        raise ValueError(
            f"expected {masked}the position of a token (--position): {_by_position(processor, ids)}; got {position}."
        )
    if not kind.names_tokens:
        return replace(request, position=position)
    ends_apart = ids[-1] in processor.all_special_ids or processor.decode(ids[-1:])[-1:].isspace()
    spaced = not (kind.causal and ends_apart)
    words = {
        name: _word_piece(processor, word, spaced)
        for name in ("target", "instead_of")
        if isinstance(word := getattr(request, name), str)
    }
    return replace(request, position=position, **words)


def _by_position(tokenizer, ids: Sequence[int]) -> str:
    """The tokens after their positions; of a long text the first and the last ones."""
    names = [f"{place} {token}" for place, token in enumerate(spelled(tokenizer, ids))]
    return ", ".join(names if len(names) <= 2 * LISTED else [*names[:LISTED], "…", *names[-LISTED:]])


def _word_piece(tokenizer, word: str, spaced: bool) -> int:
    """The id of a word as spelled in a text, after a space if `spaced`, or of a word piece."""
    if not word.strip():
        raise ValueError(f"expected a word of the vocabulary as target, got {word!r}.")
    words = (f" {word.lstrip()}", word) if spaced else (word, f" {word.lstrip()}")
    spellings = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in words]
    for pieces in spellings:
        if len(pieces) == 1 and (pieces[0] != tokenizer.unk_token_id or word == tokenizer.unk_token):
            return pieces[0]
    token = tokenizer.convert_tokens_to_ids(word)
    if token is None or token == tokenizer.unk_token_id:
        known = [piece for piece in spellings[0] if piece != tokenizer.unk_token_id]
        parts = " + ".join(repr(tokenizer.decode([piece])) for piece in known)
        whole = " Or explain all of them with --continuation."
        advice = f", but {parts}; choose one of them.{whole}" if len(known) > 1 else "; choose a word that is one."
        raise ValueError(f"target {word!r} is not one token of the vocabulary{advice}")
    return token
