"""What is explained: one number `y` per example, by default the logit of the class that the model predicts.

Of a language model it is the logit above the mean of the whole vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.common.errors import did_you_mean
from hf_bidir.explain.attentions import token_positions

VOCABULARY = ("ForMaskedLM", "ForCausalLM", "LMHeadModel")
PER_TOKEN = (*VOCABULARY, "ForTokenClassification")
Target = int | str | Sequence[int] | Tensor | None


@dataclass(frozen=True)
class Readout:
    """Which number of the model's outputs is explained: `y = Σ weights · row`, the row at `positions`, if any."""

    weights: Tensor  # [batch, entries]: one class, or a direction of the hidden state
    positions: Tensor | None  # [batch]: for outputs that have a row per token

    def __call__(self, outputs: ModelOutput) -> Tensor:
        """`y` `[batch]`, in at least fp32."""
        rows = _rows(outputs)
        if self.positions is not None:
            rows = rows[torch.arange(len(rows), device=rows.device), self.positions]
        return (rows.to(self.weights.dtype) * self.weights).sum(-1)

    def of(self, examples: Tensor) -> "Readout":
        """The readout of a batch made of these examples, `[rows]`, of the batch."""
        return Readout(self.weights[examples], None if self.positions is None else self.positions[examples])


def choose_readout(
    model: PreTrainedModel,
    outputs: ModelOutput,
    target: Target,
    position: int | Tensor | None,
    default: int | Tensor = 0,
) -> Readout:
    """What `target` and `position` mean for the outputs of a batch.

    Args:
        target: a class by number or name, or one number per example; None for the class that is predicted. A model
            without a head is explained along its own hidden state, and takes no target.
        position: for heads that answer per token (language modelling, token classes), which token's answer.
        default: the position of a model without a head, where none is given.

    Raises:
        ValueError: a class that there is not, a position that is missing or outside, a head with other outputs.
    """
    check_position(model, position)
    rows = _rows(outputs)
    if rows is None or rows.dim() not in (2, 3):
        raise ValueError(
            f"{type(model).__name__} has outputs {list(outputs)}; explained are logits of classes and, without a head, "
            "hidden states. model.base_model is the same model without its head."
        )
    positions = None
    if rows.dim() == 3:
        everywhere = torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)
        positions = token_positions(default if position is None else position, everywhere)
        rows = rows[torch.arange(len(rows), device=rows.device), positions]
    rows = rows.detach().to(torch.promote_types(rows.dtype, torch.float32))
    if "logits" in outputs:
        classes = _classes(model, rows, target)
        weights = torch.nn.functional.one_hot(classes, rows.shape[-1]).to(rows.dtype)
        if names_tokens(model):  # logits that all rise together change no answer
            weights = weights - 1 / rows.shape[-1]
        return Readout(weights, positions)
    if target is not None:
        raise ValueError(f"{type(model).__name__} has no classes, so target must be None; got {target!r}.")
    return Readout(torch.nn.functional.normalize(rows, dim=-1), positions)


def names_tokens(model: PreTrainedModel) -> bool:
    """Whether the answers are tokens of a vocabulary."""
    return type(model).__name__.endswith(VOCABULARY)


def answers_per_token(model: PreTrainedModel) -> bool:
    return type(model).__name__.endswith(PER_TOKEN)


def check_position(model: PreTrainedModel, position: int | Tensor | None) -> None:
    """Raise ValueError where a head answers per token and none is named, or the other way round."""
    name = type(model).__name__
    if answers_per_token(model) and position is None:
        raise ValueError(f"{name} answers for every token; say with position=… which answer to explain.")
    if position is not None and name.endswith("Classification") and not answers_per_token(model):
        raise ValueError(f"{name} answers once per example; leave position out.")


def _rows(outputs: ModelOutput) -> Tensor | None:
    return outputs.get("logits", outputs.get("last_hidden_state"))


def _classes(model: PreTrainedModel, logits: Tensor, target: Target) -> Tensor:
    if target is None:
        return logits.argmax(-1)
    count = logits.shape[-1]
    names = {str(name): int(index) for index, name in model.config.id2label.items()}
    known = list(names) if len(names) == count <= 20 else f"0 to {count - 1}"
    if isinstance(target, str):
        index = names.get(target, int(target) if target.isdecimal() else None)
        if index is None:
            raise ValueError(f"target {target!r} does not exist; there are {known}.{did_you_mean(target, list(names))}")
        target = index
    classes = torch.as_tensor(target, device=logits.device)
    if classes.numel() not in (1, len(logits)) or classes.is_floating_point():
        raise ValueError(f"expected one target, or one per example ({len(logits)}), got {target!r}.")
    if classes.min() < 0 or classes.max() >= count:
        raise ValueError(f"target {target!r} does not exist; there are {known}.")
    return classes.long().reshape(-1).expand(len(logits))
