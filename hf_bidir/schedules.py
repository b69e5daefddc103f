"""Raising (or lowering) the negative mass `λ` in the course of training, as a callback of the Trainer."""

import math
from itertools import pairwise
from typing import Any

from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState

from hf_bidir.modeling.activations import check_negative_mass
from hf_bidir.modeling.signed_layers import signed_layers

NEARLY_SOFTMAX = math.exp(-12)
SHAPES = ("log", "linear")
ORDERS = ("together", "bottom-up", "top-down")


class NegativeMassSchedule(TrainerCallback, ExportableState):
    """Moves `model.config.attn_negative_mass` from `start` to `end` while the model trains.

    Before every step the config gets the value of that step, so a saved checkpoint always names the `λ` that its
    weights were trained with. The value depends on the step alone; an interrupted run resumes where it was.

    Args:
        start, end: `λ` in [0, 1] before and after; neither is 0 with the shape "log". The default start, `e^-12`, is
            close to softmax; a model that has more negative mass than `start` falls back to it.
        begin, until: the shares of training, in [0, 1], at which the value starts to move and arrives.
        shape: "log" is linear in `log λ`, that is in the shift `-½ log λ` of the scores; "linear" is linear in `λ`.
        order: "together" moves all layers at once; "bottom-up" and "top-down" move one layer after the other, each
            in its own part of the time between `begin` and `until`.

    Raises:
        ValueError: a value out of range, an unknown name, or `until` before `begin`; when training begins, a model
            without negative mass, or a checkpoint that was trained with another schedule.

    The value is added to every entry of the log as `negative_mass` (the mean over layers) and, with an order, as
    `negative_mass_layer_<index>`. `FinetuneTrainer` adds it before TensorBoard and the like read the entry. A plain
    Trainer calls them first unless they are given after this callback:
    `Trainer(callbacks=[NegativeMassSchedule(), TensorBoardCallback()], args=TrainingArguments(report_to="none"))`.
    It also takes every checkpoint for the candidate that `load_best_model_at_end` chooses among; `FinetuneTrainer`
    counts only those after `until`.
    """

    def __init__(
        self,
        start: float = NEARLY_SOFTMAX,
        end: float = 1.0,
        *,
        begin: float = 0.0,
        until: float = 0.35,
        shape: str = "log",
        order: str = "together",
    ) -> None:
        check_negative_mass(start)
        check_negative_mass(end)
        for name, value, known in (("shape", shape, SHAPES), ("order", order, ORDERS)):
            if value not in known:
                raise ValueError(f'{name}="{value}" is not known; choose one of: {", ".join(known)}.')
        if shape == "log" and not (start > 0 and end > 0):
            raise ValueError(
                f'shape="log" needs a start and an end above 0, got {start} and {end}; 6e-6 is close to softmax, and '
                'shape="linear" takes 0.'
            )
        if not 0 <= begin <= until <= 1:
            raise ValueError(
                f"a schedule ends no earlier than it begins, 0 <= begin <= until <= 1, as shares of training; got "
                f"begin={begin}, until={until}. Choose a later until, or an earlier begin."
            )
        self.start, self.end, self.begin, self.until, self.shape, self.order = start, end, begin, until, shape, order
        self.max_steps: int | None = None  # of the training that this is the schedule of, once it has begun

    def state(self) -> dict[str, dict[str, Any]]:
        """What a checkpoint saves: the arguments, and the number of steps that the shares refer to."""
        arguments = {name: value for name, value in vars(self).items() if name != "max_steps"}
        return {"args": arguments, "attributes": {"max_steps": self.max_steps}}

    def values(self, step: int, max_steps: int, layers: int) -> float | list[float]:
        """`λ` during the step number `step` (from 0) of `max_steps`: one number, or one per layer."""
        progress = step / max(1, max_steps - 1)
        if self.order == "together":
            return self._value(progress, self.begin, self.until)
        bounds = [self.begin + (self.until - self.begin) * index / layers for index in range(layers)] + [self.until]
        windows = list(pairwise(bounds))
        if self.order == "top-down":
            windows.reverse()
        return [self._value(progress, *window) for window in windows]

    def _value(self, progress: float, begin: float, until: float) -> float:
        if progress >= until:
            return self.end
        if progress <= begin:
            return self.start
        share = (progress - begin) / (until - begin)
        if self.shape == "linear":
            return self.start + share * (self.end - self.start)
        return math.exp((1 - share) * math.log(self.start) + share * math.log(self.end))

    def has_arrived(self, state: TrainerState) -> bool:
        """Whether the last step was trained at the end value."""
        return state.global_step - 1 >= self.until * max(1, state.max_steps - 1)

    def check_saved(self, state: TrainerState) -> None:
        """Raise ValueError unless a checkpoint's state was saved with this very schedule."""
        saved, own = saved_schedule(state), self.state()
        if saved and self.max_steps is None:  # training has not begun
            own["attributes"] = saved["attributes"]
        if saved != own:
            raise ValueError(
                f"the checkpoint at step {state.global_step} was trained with the negative mass schedule {saved}, and "
                f"this run has {own}; resume with the schedule of the checkpoint, or start anew."
            )

    @staticmethod
    def check_model(config: PretrainedConfig) -> None:
        """Raise ValueError unless the model has a negative mass that a schedule may set."""
        activation = getattr(config, "attn_activation", None)
        if activation != "tanhmax":
            raise ValueError(
                'a negative mass schedule needs a bidir model with attn_activation="tanhmax"; got '
                f"{type(config).__name__} with attn_activation={activation!r}."
            )

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        self.check_model(model.config)
        self.max_steps = state.max_steps
        if state.global_step > 0:
            self.check_saved(state)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        layers = len(signed_layers(model))
        model.config.attn_negative_mass = self.values(state.global_step, state.max_steps, layers)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        logs: dict[str, float],
        **kwargs: Any,
    ) -> None:
        values = negative_mass_metrics(model)
        logs |= values
        state.log_history[-1] |= values


def saved_schedule(state: TrainerState) -> dict[str, dict[str, Any]] | None:
    """The `NegativeMassSchedule.state()` that a checkpoint was saved with, or None where it had no schedule."""
    saved = (state.stateful_callbacks or {}).get(NegativeMassSchedule.__name__)
    return saved[0] if isinstance(saved, list) else saved


def negative_mass_metrics(model: PreTrainedModel) -> dict[str, float]:
    """The model's `λ` as entries of a log: `negative_mass`, the mean, and one `negative_mass_layer_<index>` for each
    layer where they differ."""
    mass = model.config.attn_negative_mass
    if isinstance(mass, int | float):
        return {"negative_mass": float(mass)}
    means = [float(sum(layer) / len(layer)) if isinstance(layer, list | tuple) else float(layer) for layer in mass]
    layers = {f"negative_mass_layer_{index}": value for index, value in enumerate(means)}
    return {"negative_mass": sum(means) / len(means), **layers}
