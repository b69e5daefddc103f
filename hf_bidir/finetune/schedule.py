"""The negative mass `λ` during training: a Trainer callback that raises or lowers it, and its options."""

import math
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel, TrainerCallback, TrainerState

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS, checked_negative_mass

from .arguments import ScheduleArguments

NEARLY_SOFTMAX = math.exp(-12)


class NegativeMassSchedule(TrainerCallback):
    """Moves `model.config.attn_negative_mass`, `λ`, from `start` to `end` while the model trains.

    It changes linearly in `log λ`, that is in the shift `-½ log λ` of the scores, from the first step. Before every
    step the config gets the value of that step, which depends on the step alone: a checkpoint has the `λ` of its last
    training step, and an interrupted run resumes where it was. A checkpoint before `until` is closer to softmax than
    asked for, and cannot be the best one.

    Args:
        start, end: `λ` in (0, 1] before and after. The default start, `e^-12`, is close to softmax; a model that has
            more negative mass than `start` falls back to it.
        until: the share of training, in [0, 1], at which `λ` reaches `end`.

    Raises:
        ValueError: a value out of range; when training begins, a model without negative mass.
    """

    def __init__(self, start: float = NEARLY_SOFTMAX, end: float = 1.0, *, until: float = 0.35) -> None:
        self.start, self.end, self.until = checked_negative_mass(start), checked_negative_mass(end), until
        if self.start == 0 or self.end == 0:
            raise ValueError(
                f"expected start and end above 0, whose logarithms are finite; got {start} and {end}. 6e-6 is close to "
                "softmax."
            )
        if not 0 <= until <= 1:
            raise ValueError(f"expected until as a share of training, 0 to 1; got {until}.")

    def value(self, step: int, max_steps: int) -> float:
        """`λ` during the step number `step` (from 0) of `max_steps`."""
        progress = step / max(1, max_steps - 1)
        if progress >= self.until:
            return self.end
        share = progress / self.until
        return math.exp((1 - share) * math.log(self.start) + share * math.log(self.end))

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, model: PreTrainedModel, **_: Any) -> None:
        check_has_mass(model.config)
        model.config.attn_negative_mass = self.value(state.global_step, state.max_steps)

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, model: PreTrainedModel, **_: Any) -> None:
        step = state.global_step
        model.config.attn_negative_mass = self.value(step, state.max_steps)
        if step == 0 or self.value(step - 1, state.max_steps) != self.end:
            state.best_metric = state.best_global_step = state.best_model_checkpoint = None


def check_has_mass(config: PretrainedConfig) -> None:
    """Raise ValueError unless the model has a negative mass that a schedule may set."""
    activation = getattr(config, "attn_activation", None)
    if activation not in WITH_NEGATIVE_MASS:
        raise ValueError(
            f"a negative mass schedule needs a bidir model with attn_activation {' or '.join(WITH_NEGATIVE_MASS)}; "
            f"got {type(config).__name__} with attn_activation={activation!r}."
        )


def schedule_for(options: ScheduleArguments, config: PretrainedConfig) -> NegativeMassSchedule | None:
    """The schedule that the options describe, or None without one; by default it starts from the model's negative mass,
    or close to softmax.

    Raises:
        InputError: a value out of range, or a model that has no negative mass, or several.
    """
    if options.negative_mass_until is None:
        return None
    with as_input_error("--negative_mass_*: "):
        check_has_mass(config)
        start = options.negative_mass_start
        if start is None:
            start = config.attn_negative_mass or NEARLY_SOFTMAX
        if isinstance(start, list | tuple):
            raise InputError(
                "the model has several negative masses, which a schedule replaces by a single one; give "
                "--negative_mass_start to accept this, or leave out --negative_mass_until"
            )
        end = 1.0 if options.negative_mass_end is None else options.negative_mass_end
        return NegativeMassSchedule(start, end, until=options.negative_mass_until)
