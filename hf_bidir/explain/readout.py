"""The explained number `y`, by default the logit of the predicted class: a function of outputs, and of an input.

For language models `y` is the logit minus the mean over the vocabulary.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import kind_of, takes_one_row
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.explain.forward import ForwardCache, leading_tokens, patch_size, reads_images, token_positions
from hf_bidir.explain.request import Request, Target, check_position
from hf_bidir.modeling.activations import upcast

ROWS = ("logits", "sentence_embedding", "last_hidden_state")  # outputs that are explained, the first one present
LISTED = 20  # classes in a message


@dataclass(frozen=True)
class Readout:
    """The explained number `y = Σ weights · row`, with the row of outputs at `positions`, if any.

    Attributes:
        weights: `[batch, entries]`, of one class, or a direction of the hidden state.
        positions: `[batch]`, for outputs with a row per token.
        targets, foils: `[batch]`, the explained class, and the one that it is contrasted with, if any.
    """

    weights: Tensor
    positions: Tensor | None
    targets: Tensor | None = None
    foils: Tensor | None = None

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
        positions = None if self.positions is None else self.positions[examples]
        return Readout(self.weights[examples], positions)


def readout_of(model: PreTrainedModel, outputs: ModelOutput, request: Request, default: int | Tensor = 0) -> Readout:
    """Resolve target and position of a request, or the `default` position, for the outputs of a batch.

    Without a head there is no target: `y` is the projection of the hidden state, or of the embedding, on itself. For a
    sentence encoder that is compared with a text it is the similarity. Raises ValueError for what does not exist.
    """
    check_position(model, request.position)
    rows = _explained(outputs)
    if rows is None or rows.dim() not in (2, 3):
        raise ValueError(
            f"expected logits of classes or, without a head, hidden states; {type(model).__name__} has outputs "
            f"{list(outputs)}. Explain model.base_model, the same model without its head."
        )
    positions = None
    if rows.dim() == 3:
        every = torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)
        positions = token_positions(default if request.position is None else request.position, every)
        rows = _at(rows, positions)
    rows = upcast(rows.detach())
    if "logits" in outputs:
        return _of_classes(model, rows, request, positions)
    for name in ("instead_of", "target"):
        if (value := getattr(request, name)) is not None:
            raise ValueError(f"{type(model).__name__} has no classes; got {name} {value!r}, leave it out.")
    reference = getattr(model, "reference", None)  # the embedding that this one is compared with
    if reference is None:
        return Readout(nn.functional.normalize(rows, dim=-1), positions)
    return Readout(reference.to(rows).expand_as(rows), positions)


def cached_readout(cache: ForwardCache, request: Request, outputs: ModelOutput | None = None) -> Readout:
    """The readout of the outputs in a cache, or of others for the same inputs."""
    outputs = cache.outputs if outputs is None else outputs
    hidden = "logits" not in outputs and "last_hidden_state" in outputs
    return readout_of(cache.model, outputs, request, cache.position if hidden else 0)


def _explained(outputs: ModelOutput) -> Tensor | None:
    return next((outputs[name] for name in ROWS if name in outputs), None)


def _at(rows: Tensor, positions: Tensor) -> Tensor:
    return rows[torch.arange(len(rows), device=rows.device), positions]


def _of_classes(model: PreTrainedModel, logits: Tensor, request: Request, positions: Tensor | None) -> Readout:
    """The readout of logits `[batch, classes]`."""
    count = logits.shape[-1]
    targets = logits.argmax(-1) if request.target is None else _classes(model, logits, request.target)
    weights = nn.functional.one_hot(targets, count).to(logits.dtype)
    if request.instead_of is None:
        # a shift of all logits changes no prediction
        shift = 1 / count if kind_of(model).names_tokens else 0
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
    names = {int(index): str(name) for index, name in model.config.id2label.items()}
    known = list(names.values()) if len(names) == count <= LISTED else f"0 to {count - 1}"
    unknown = f"target {target!r} does not exist; choose one of {known}, or one per example ({batch})."
    if isinstance(target, str):
        indices = [index for index, name in names.items() if name == target]
        if len(indices) > 1:
            both = " and ".join(map(str, indices))
            raise ValueError(f"target {target!r} is the name of the classes {both}; choose one of them by its index.")
        if not indices and not target.isdecimal():
            from hf_bidir.common.errors import did_you_mean

            raise ValueError(unknown + did_you_mean(target, list(names.values())))
        target = indices[0] if indices else int(target)
    classes = torch.as_tensor(target, device=logits.device).long().reshape(-1)
    inside = (classes >= 0) & (classes < count)
    if len(classes) not in (1, batch) or not inside.all():
        raise ValueError(unknown)
    return classes.expand(batch)


class InputFunction:
    """A model's outputs and `y` as functions of the input tensor, in the form that captum calls.

    Attributes:
        start: word embeddings `[batch, length, hidden]`, or pixels.
        rows: the index of each example; captum repeats it together with the example.
    """

    def __init__(
        self, cache: ForwardCache, request: Request, *, one_point: bool = False, keep_first: bool | None = None
    ) -> None:
        """The function of these inputs, at `one_point` only: `y` is read from its own outputs, without the cache's.

        `keep_first`: whether the first token of a text is part of the baseline; None: where attention is causal.
        """
        self.cache, self.request, self.model = cache, request, cache.model
        self.is_image, self.keep_first = reads_images(cache.model), keep_first
        with torch.no_grad():
            self.start = cache.main_input
            if not self.is_image:
                self.start = self.model.get_input_embeddings()(cache.main_input)
            self.readout = None if one_point else cached_readout(cache, request)
        self.rows = torch.arange(len(self.start), device=self.start.device)

    @cached_property
    def baseline(self) -> Tensor:
        """Images of zeros, or padding at every token except the sinks of causal attention, the first of each text.

        Without a sink, y changes too abruptly for an integral of few steps.
        """
        if self.is_image:
            return torch.zeros_like(self.start)
        embeddings = self.model.get_input_embeddings()
        padding = getattr(self.model.config.get_text_config(), "pad_token_id", None)
        known = isinstance(padding, int) and 0 <= padding < embeddings.num_embeddings
        token = torch.tensor([padding if known else 0], device=self.start.device)
        padded = embeddings(token).detach().expand_as(self.start)
        return torch.where(self._sinks().unsqueeze(-1), self.start, padded)

    @torch.no_grad()
    def _sinks(self) -> Tensor:
        """The tokens that are part of the baseline, boolean `[batch, length]`."""
        keep = self.cache.keep
        first = keep.long().argmax(-1)  # after padding on the left
        causal = self.cache.position > first
        kept = causal if self.keep_first is None else torch.full_like(causal, self.keep_first)
        firsts = nn.functional.one_hot(first, keep.shape[1]).bool()
        return firsts & kept.unsqueeze(1)

    def run(self, start: Tensor, rows: Tensor) -> ModelOutput:
        """The outputs of the model for these input tensors of the rows."""
        if len(rows) > 1 and takes_one_row(self.model):
            pairs = zip(start.split(1), rows.split(1), strict=True)
            return ModelOutput(logits=torch.cat([self.run(*pair).logits for pair in pairs]))
        inputs = {name: value[rows] for name, value in self.cache.inputs.items()}
        start = start.to(self.start.dtype)  # captum adds noise in single precision
        if self.is_image:
            return self.model(**inputs | {"pixel_values": start}, return_dict=True)
        # no inputs_embeds: some models find padding, or the position to read, by token id
        with hooked([self.model.get_input_embeddings()], after=lambda *_: start.clone()):
            return self.model(**inputs, return_dict=True)

    def score(self, start: Tensor, rows: Tensor) -> Tensor:
        """`y` `[rows]` for these input tensors."""
        outputs = self.run(start, rows)
        if self.readout is None:
            return cached_readout(self.cache, self.request, outputs)(outputs)
        return self.readout.of(rows)(outputs)

    def by_token(self, scores: Tensor) -> Tensor:
        """Sum scores of the shape of `start` to `[batch, length]`."""
        scores = scores.detach()
        if not self.is_image:
            return scores.sum(-1)
        height, width = patch_size(self.model)
        patches = scores.unfold(2, height, height).unfold(3, width, width)
        by_patch = patches.sum((1, 4, 5)).flatten(1)
        with torch.no_grad():
            leading = leading_tokens(self.model, self.start, self.cache.length)
        return nn.functional.pad(by_patch, (leading, 0))
