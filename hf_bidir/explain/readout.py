"""The explained number `y` of each example, by default the logit of the predicted class.

For language models it is the logit minus the mean over the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.common.errors import did_you_mean
from hf_bidir.explain.attentions import token_positions
from hf_bidir.explain.sentence_encoder import takes_embedding
from hf_bidir.modeling.activations import upcast

ROWS = ("logits", "sentence_embedding", "last_hidden_state")  # outputs that are explained, the first one present
Target = int | str | Sequence[int] | Tensor | None


@dataclass(frozen=True)
class Readout:
    """The explained number `y = Σ weights · row`, with the row of outputs at `positions`, if any."""

    weights: Tensor  # [batch, entries]: one class, or a direction of the hidden state
    positions: Tensor | None  # [batch]: for outputs with a row per token

    def __call__(self, outputs: ModelOutput) -> Tensor:
        """`y` `[batch]`, in at least fp32."""
        rows: Any = _rows(outputs)  # a tensor: choose_readout refuses other outputs
        if self.positions is not None:
            rows = rows[torch.arange(len(rows), device=rows.device), self.positions]
        return (rows.to(self.weights.dtype) * self.weights).sum(-1)

    def of(self, examples: Tensor) -> "Readout":
        """The readout of a batch composed of these examples, `[rows]`."""
        return Readout(self.weights[examples], None if self.positions is None else self.positions[examples])


def choose_readout(
    model: PreTrainedModel,
    outputs: ModelOutput,
    target: Target,
    position: int | Tensor | None,
    default: int | Tensor = 0,
) -> Readout:
    """Resolve `target` and `position` for the outputs of a batch.

    Args:
        target: a class by index or name, or one index per example; None for the predicted class. A model without a
            head takes no target: `y` is the projection on its own hidden state, or on its own embedding. A sentence
            encoder that is compared with a text has the similarity to it as `y`.
        position: for heads with an output per token (language modelling, token classes), the position to explain.
        default: the position for a model without a head, if `position` is None.

    Raises:
        ValueError: an unknown class, a position that is missing or out of range, or a head with other outputs.
    """
    check_position(model, position)
    rows = _rows(outputs)
    if rows is None or rows.dim() not in (2, 3):
        raise ValueError(
            f"expected logits of classes or, without a head, hidden states; {type(model).__name__} has outputs "
            f"{list(outputs)}. Explain model.base_model, the same model without its head."
        )
    positions = None
    if rows.dim() == 3:
        everywhere = torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)
        positions = token_positions(default if position is None else position, everywhere)
        rows = rows[torch.arange(len(rows), device=rows.device), positions]
    rows = upcast(rows.detach())
    if "logits" in outputs:
        classes = _classes(model, rows, target)
        weights = torch.nn.functional.one_hot(classes, rows.shape[-1]).to(rows.dtype)
        if kind_of(model).names_tokens:  # a shift of all logits changes no prediction
            weights = weights - 1 / rows.shape[-1]
        return Readout(weights, positions)
    if target is not None:
        raise ValueError(f"{type(model).__name__} has no classes, so target must be None; got {target!r}.")
    if (reference := getattr(model, "reference", None)) is not None:  # the embedding that this one is compared with
        return Readout(reference.to(rows).expand_as(rows), positions)
    return Readout(torch.nn.functional.normalize(rows, dim=-1), positions)


def has_head(model: PreTrainedModel) -> bool:
    """Whether the model has logits, as its name says."""
    return "For" in type(model).__name__ or type(model).__name__.endswith("LMHeadModel")


def reads_beginning(model: PreTrainedModel) -> bool:
    """Whether a text that is too long is cut: the model predicts tokens, or embeds texts as sentence-transformers."""
    return kind_of(model).per_token or takes_embedding(model)


def check_position(model: PreTrainedModel, position: int | Tensor | None) -> None:
    """Raise ValueError if a head with an output per token has no position, or another classifier has one."""
    name = type(model).__name__
    if kind_of(model).per_token and position is None:
        raise ValueError(f"{name} has an output per token; choose the one to explain with position=….")
    whole = name.endswith("Classification") or takes_embedding(model)
    if position is not None and whole and not kind_of(model).per_token:
        raise ValueError(f"{name} has one output per example; leave out position.")


def _rows(outputs: ModelOutput) -> Tensor | None:
    return next((outputs[name] for name in ROWS if name in outputs), None)


def _classes(model: PreTrainedModel, logits: Tensor, target: Target) -> Tensor:
    if target is None:
        return logits.argmax(-1)
    count = logits.shape[-1]
    names = {str(name): int(index) for index, name in model.config.id2label.items()}
    known = list(names) if len(names) == count <= 20 else f"0 to {count - 1}"
    if isinstance(target, str):
        index = names.get(target, int(target) if target.isdecimal() else None)
        if index is None:
            close = did_you_mean(target, list(names))
            raise ValueError(f"target {target!r} does not exist; choose one of {known}.{close}")
        target = index
    classes = torch.as_tensor(target, device=logits.device)
    if classes.numel() not in (1, len(logits)) or classes.is_floating_point():
        raise ValueError(f"expected one target, or one per example ({len(logits)}), got {target!r}.")
    if classes.min() < 0 or classes.max() >= count:
        raise ValueError(f"target {target!r} does not exist; choose one of {known}.")
    return classes.long().reshape(-1).expand(len(logits))
