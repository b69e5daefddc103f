"""The negative mass `λ` during training: a Trainer callback that raises or lowers it, and its options."""

import math
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel, TrainerState
from transformers.trainer_callback import ExportableState

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.finetune.arguments import ScheduleArguments
from hf_bidir.finetune.log_entries import LogEntries, negative_mass_metrics
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS, checked_negative_mass

NEARLY_SOFTMAX = math.exp(-12)


class NegativeMassSchedule(LogEntries, ExportableState):
    """Moves `model.config.attn_negative_mass`, `λ`, from `start` to `end` while the model trains.

    It changes linearly in `log λ`, that is in the shift `-½ log λ` of the scores, from the first step.

    Before every step the config gets the value of that step, so a checkpoint always has the `λ` of its last training
    step. The value depends on the step alone; an interrupted run resumes where it was.

    The value is added to every entry of the log as `negative_mass` (`LogEntries` says how loggers get it from a plain
    Trainer). With a plain Trainer, `load_best_model_at_end` also considers checkpoints before `until`;
    `SignedTrainer` ignores them.

    Args:
        start, end: `λ` in (0, 1] before and after. The default start, `e^-12`, is close to softmax; a model that has
            more negative mass than `start` falls back to it.
        until: the share of training, in [0, 1], at which `λ` reaches `end`.

    Raises:
        ValueError: a value out of range; when training begins, a model without negative mass, or a checkpoint that was
            trained with another schedule.
    """

    def __init__(self, start: float = NEARLY_SOFTMAX, end: float = 1.0, *, until: float = 0.35) -> None:
        start, end = checked_negative_mass(start), checked_negative_mass(end)
        for name, mass in (("start", start), ("end", end)):
            if mass == 0:
                raise ValueError(f"expected {name} above 0, whose logarithm is finite; 6e-6 is close to softmax.")
        if not 0 <= until <= 1:
            raise ValueError(f"expected until as a share of training, 0 to 1; got {until}.")
        self.start, self.end, self.until = start, end, until
        self.max_steps: int | None = None  # set when training begins

    def state(self) -> dict[str, dict[str, Any]]:
        """The state saved in checkpoints: the arguments, and the number of steps that `until` is a share of."""
        arguments = {name: getattr(self, name) for name in ("start", "end", "until")}
        return {"args": arguments, "attributes": {"max_steps": self.max_steps}}

    def value(self, step: int, max_steps: int) -> float:
        """`λ` during the step number `step` (from 0) of `max_steps`."""
        progress = step / max(1, max_steps - 1)
        if progress >= self.until:
            return self.end
        share = progress / self.until
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
        if activation not in WITH_NEGATIVE_MASS:
            raise ValueError(
                f"a negative mass schedule needs a bidir model with attn_activation {' or '.join(WITH_NEGATIVE_MASS)}; "
                f"got {type(config).__name__} with attn_activation={activation!r}."
            )

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, model: PreTrainedModel, **_: Any) -> None:
        self.check_model(model.config)
        self.max_steps = state.max_steps
        if state.global_step > 0:
            self.check_saved(state)

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, model: PreTrainedModel, **_: Any) -> None:
        model.config.attn_negative_mass = self.value(state.global_step, state.max_steps)

    def entries(self, model: PreTrainedModel, logs: dict[str, float]) -> dict[str, float]:
        return negative_mass_metrics(model)


def saved_schedule(state: TrainerState) -> dict[str, dict[str, Any]] | None:
    """The `NegativeMassSchedule.state()` that a checkpoint was saved with, or None where it had no schedule."""
    saved = (state.stateful_callbacks or {}).get(NegativeMassSchedule.__name__)
    return saved[0] if isinstance(saved, list) else saved


def schedule_for(options: ScheduleArguments, config: PretrainedConfig | None = None) -> NegativeMassSchedule | None:
    """The schedule that the options describe, or None without one; by default it starts from the negative mass of the
    model with this config, or close to softmax. Without a config only the values are checked.

    Raises:
        InputError: a value out of range, or a model that has no negative mass, or several.
    """
    if options.negative_mass_until is None:
        return None
    start, own = options.negative_mass_start, getattr(config, "attn_negative_mass", None)
    with as_input_error("--negative_mass_*: "):
        if config is not None:
            NegativeMassSchedule.check_model(config)
        if start is None and isinstance(own, list | tuple):
            raise InputError(
                "the model has a negative mass for each layer or head, and a schedule would replace them by a single "
                "one; give --negative_mass_start to accept this, or leave out --negative_mass_until"
            )
        start = own or NEARLY_SOFTMAX if start is None else start
        end = 1.0 if options.negative_mass_end is None else options.negative_mass_end
        return NegativeMassSchedule(start, end, until=options.negative_mass_until)


def check_resumed_schedule(schedule: NegativeMassSchedule | None, checkpoint: str) -> None:
    """Raise InputError where a run would continue a checkpoint with another schedule than the checkpoint's."""
    state = TrainerState.load_from_json(str(Path(checkpoint, "trainer_state.json")))
    if schedule is not None:
        with as_input_error():
            schedule.check_saved(state)
    elif saved := saved_schedule(state):
        raise InputError(
            f"{checkpoint} was trained with the negative mass schedule {saved}, and this run has none; give it the "
            "same --negative_mass_until, or start again with --overwrite_output_dir"
        )
