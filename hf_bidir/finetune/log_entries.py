"""What signed models add to the log of a Trainer, and so to TensorBoard and whatever else `report_to` names."""

from collections.abc import Callable
from contextlib import nullcontext
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback
from transformers.utils import logging

from hf_bidir.checkpoints.layer_hooks import at_tokens, attends, counted_signs, in_evaluation
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS, score_shift
from hf_bidir.modeling.configuration_bidir import all_masses

logger = logging.get_logger(__name__)

FEW = 8  # examples that are measured
HIDDEN_STATES = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")


class LogEntries(TrainerCallback):
    """A Trainer callback that adds `entries(model, logs)` to every entry of the log.

    `SignedTrainer` adds them before TensorBoard and the like read the entry. A plain Trainer calls these first, unless
    they are given after the callback:
    `Trainer(callbacks=[AttentionLog(), TensorBoardCallback()], args=TrainingArguments(report_to="none"))`.
    """

    added_to: dict[str, float] | None = None

    def entries(self, model: PreTrainedModel, logs: dict[str, float]) -> dict[str, float]:
        raise NotImplementedError

    def add(self, model: PreTrainedModel, logs: dict[str, float]) -> None:
        logs |= self.entries(model, logs)
        self.added_to = logs

    def on_log(
        self, args: Any, state: Any, control: Any, model: PreTrainedModel, logs: dict[str, float], **_: Any
    ) -> None:
        if self.added_to is logs:
            return
        self.add(model, logs)
        state.log_history[-1] |= logs
        if args.report_to:
            name = type(self).__name__
            logger.warning_once(
                f"{', '.join(args.report_to)} read the log before {name} adds to it; use hf_bidir's SignedTrainer, or "
                f'report_to="none" with the logger after it: callbacks=[{name}(), TensorBoardCallback()].'
            )


class AttentionLog(LogEntries):
    """Logs what signed attention does during training, with every logged loss.

    | entry | value |
    | --- | --- |
    | `negative_mass` | `λ`, the mean, and `negative_mass_layer_<index>` where layers differ |
    | `score_shift` | `-½ log λ`, the mean, with tanhmax and without a `λ` of 0 |
    | `negative_share` | share of negative coefficients among those of magnitude over 1e-3, in [0, 1] |
    | `largest_activation` | largest magnitude of a hidden state between layers, at tokens that are not padding |

    The last two are measured when a loss is logged: one forward pass of up to 8 examples of the last training batch,
    without gradients, dropout, or an effect on the training. Stock and softmax models are measured too, for
    comparison. A model that torch.compile compiles logs its `λ` alone.

        SignedTrainer(model=model, args=TrainingArguments(..., report_to="tensorboard"), callbacks=[AttentionLog()])
    """

    def __init__(self) -> None:
        self.call: tuple[tuple, dict] | None = None  # arguments of the model's last training step
        self.stop: Callable[[], None] = lambda: None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **_: Any) -> None:
        self.stop = model.register_forward_pre_hook(self._remember, with_kwargs=True).remove

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stop()
        self.call = None

    def _remember(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.call = args, kwargs

    def entries(self, model: PreTrainedModel, logs: dict[str, float]) -> dict[str, float]:
        if "loss" not in logs:
            return {}
        return mass_entries(model) | (measured(model, *self.call) if self.call else {})


def mass_entries(model: PreTrainedModel) -> dict[str, float]:
    """The `λ` of the model, and the shift of its scores; empty for an activation without negative mass."""
    activation = getattr(model.config, "attn_activation", None)
    if activation not in WITH_NEGATIVE_MASS:
        return {}
    masses = all_masses(model.config.attn_negative_mass)
    shifted = activation == "tanhmax" and all(masses)
    return negative_mass_metrics(model) | ({"score_shift": mean(map(score_shift, masses))} if shifted else {})


def negative_mass_metrics(model: PreTrainedModel) -> dict[str, float]:
    """The model's `λ` as entries of a log: `negative_mass`, the mean, and one `negative_mass_layer_<index>` for each
    layer where they differ."""
    mass = model.config.attn_negative_mass
    if isinstance(mass, int | float):
        return {"negative_mass": float(mass)}
    means = [float(sum(layer) / len(layer)) if isinstance(layer, list | tuple) else float(layer) for layer in mass]
    layers = {f"negative_mass_layer_{index}": value for index, value in enumerate(means)}
    return {"negative_mass": sum(means) / len(means), **layers}


@torch.no_grad()
def measured(model: PreTrainedModel, args: tuple, kwargs: dict[str, Any]) -> dict[str, float]:
    """The share of negative coefficients and the largest hidden state in a call of the model with these arguments."""
    kwargs = first_examples(kwargs) if not args else kwargs
    keep, found = kwargs.get("attention_mask"), {}
    with in_evaluation(model), counted_signs(model) if attends(model) else nullcontext() as count:
        if count is not None:
            count.keep = keep
        outputs = model(*args, **kwargs | {"output_hidden_states": True})
    if count is not None and count.share is not None:
        found["negative_share"] = count.share
    states = [state for name in HIDDEN_STATES for state in getattr(outputs, name, None) or ()]
    if states:
        found["largest_activation"] = max(at_tokens(state, keep).abs().max().item() for state in states)
    return found


def first_examples(batch: dict[str, Any]) -> dict[str, Any]:
    """The first examples of a batch, or all where its tensors do not all have one row per example."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    if len({len(value) for value in tensors.values()}) != 1:
        return batch
    return batch | {name: value[:FEW] for name, value in tensors.items()}
