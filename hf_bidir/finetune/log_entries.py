"""What signed models add to the log of a Trainer, and so to TensorBoard and whatever else `report_to` names."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback
from transformers.utils import logging

from hf_bidir.checkpoints.layer_hooks import (
    DECODER_MASK,
    MASK,
    at_tokens,
    counted_signs,
    in_evaluation,
    observed_layers,
)
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS, score_shift
from hf_bidir.modeling.configuration_bidir import all_masses
from hf_bidir.modeling.signed_layers import signed_layers

logger = logging.get_logger(__name__)

FEW = 8  # maximum examples that are measured
MOST = 2**26  # maximum coefficients of a layer that are in memory at once; in fp32 they and their copies take 2 GiB
HIDDEN_STATES = {"hidden_states": MASK, "encoder_hidden_states": MASK, "decoder_hidden_states": DECODER_MASK}


class LogEntries(TrainerCallback):
    """A Trainer callback that adds `entries(model, logs)` to every entry of the log.

    `SignedTrainer` adds them before TensorBoard and the like read the entry. A plain Trainer calls these first, unless
    they are given after the callback:
    `Trainer(callbacks=[AttentionLog(), TensorBoardCallback()], args=TrainingArguments(report_to="none"))`.
    """

    added_to: dict[str, float] | None = None

    def entries(self, model: PreTrainedModel, logs: dict[str, float]) -> dict[str, float]:
        raise NotImplementedError

    def release(self) -> None:
        """Drop what belongs to a training; called when it ends, also by an error in a `SignedTrainer`."""

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

    The last two are measured when a loss is logged, without gradients, dropout, or an effect on the training: one
    forward pass of up to 8 examples of the last training batch, after one of a single example, which tells how many
    fit: the coefficients of a layer, examples x heads x queries x keys, are at most 2**26. `negative_share` is left
    out where one example has more. Stock and softmax models are measured too, for comparison. Without the last two are
    a model that torch.compile compiles, and one that nn.DataParallel copies to several GPUs.

    In a SentenceTransformer, the encoder is measured.

        SignedTrainer(model=model, args=TrainingArguments(..., report_to="tensorboard"), callbacks=[AttentionLog()])
    """

    def __init__(self) -> None:
        self.call: dict[str, Any] | None = None  # arguments of the model's last training step, by name
        self.stop: Callable[[], None] = lambda: None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **_: Any) -> None:
        self.release()  # if an error ended an earlier training

        def remember(module: nn.Module, args: tuple, kwargs: dict) -> None:
            # the replicas of nn.DataParallel, which are gone after the step, have copies of this hook
            if module is model and torch.is_grad_enabled() and not torch.compiler.is_compiling():
                self.call = arguments(model, args, kwargs)

        self.stop = model.register_forward_pre_hook(remember, with_kwargs=True).remove

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.release()

    def release(self) -> None:
        self.stop()
        self.call = None

    def entries(self, model: nn.Module, logs: dict[str, float]) -> dict[str, float]:
        if "loss" not in logs:
            return {}
        model = inner_model(model)
        return mass_entries(model) | (measured(model, self.call) if self.call else {})


def inner_model(model: nn.Module) -> nn.Module:
    """The model of transformers or peft, which may be in a wrapper; the model itself if there is none."""
    parts = model.modules()
    return next((one for one in parts if isinstance(one, PreTrainedModel) or hasattr(one, "peft_config")), model)


def arguments(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call by name, as `inner_model` takes them; None if a wrapper's call does not tell them."""
    inner = inner_model(model)
    names = list(inspect.signature(type(inner).forward).parameters)[1:]
    if args and isinstance(args[0], Mapping):  # of sentence-transformers, with entries of its own
        return {name: args[0][name] for name in names if name in args[0]}
    return dict(zip(names, args, strict=False)) | kwargs if inner is model else None


def mass_entries(model: nn.Module) -> dict[str, float]:
    """The `λ` of the model, and the shift of its scores; empty for an activation without negative mass."""
    activation = getattr(getattr(model, "config", None), "attn_activation", None)
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
def measured(model: nn.Module, batch: dict[str, Any]) -> dict[str, float]:
    """The share of negative coefficients and the largest hidden state in a call of the model with these arguments.

    Every process of a distributed training runs the model twice, however long its examples are.
    """
    found, signed = {}, bool(signed_layers(model))
    with in_evaluation(model):
        size = coefficients_per_layer(model, first_examples(batch, 1)) if signed else 0
        few = min(FEW, MOST // size) if size else FEW
        batch = first_examples(batch, max(few, 1))
        with counted_signs(model) if signed and few else nullcontext() as count:
            if count is not None:
                count.masks = batch
            outputs = model(**batch | {"output_hidden_states": True})
    if count is not None and count.share is not None:
        found["negative_share"] = count.share
    largest = [
        at_tokens(state, batch.get(mask)).abs().max().item()
        for name, mask in HIDDEN_STATES.items()
        for state in getattr(outputs, name, None) or ()
    ]
    return found | ({"largest_activation": max(largest)} if largest else {})


def coefficients_per_layer(model: nn.Module, batch: dict[str, Any]) -> int:
    """How many coefficients the largest layer has in a call, which does not compute them one by one."""
    sizes = [0]

    def add(layer: nn.Module, key: Tensor, value: Tensor, context: Tensor) -> None:
        sizes.append(context[..., 0].numel() * key.shape[-2])

    with observed_layers(model, add):
        model(**batch)
    return max(sizes)


def first_examples(batch: dict[str, Any], few: int) -> dict[str, Any]:
    """The first examples of a batch, or all where its tensors do not all have one row per example."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    if len({len(value) for value in tensors.values()}) != 1:
        return batch
    return batch | {name: value[:few] for name, value in tensors.items()}
