"""Build the negative mass schedule of a run from its options, and compare it with a checkpoint's."""

from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, TrainerState

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.finetune.arguments import PretrainedArguments, ScheduleArguments
from hf_bidir.finetune.models import NEGATIVE_MASSES
from hf_bidir.finetune.schedules import NEARLY_SOFTMAX, NegativeMassSchedule, saved_schedule
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS


def build_schedule(options: ScheduleArguments | None, config: PretrainedConfig) -> NegativeMassSchedule | None:
    """The callback that the options describe for a model with this config, or None without a schedule.

    Without a start it starts from the model's own negative mass, or close to softmax where that is 0.

    Raises:
        InputError: a value out of range, or a model that has no negative mass.
    """
    if options is None or options.negative_mass_until is None:
        return None
    start, own = options.negative_mass_start, config.attn_negative_mass
    if start is None and isinstance(own, list | tuple):
        raise InputError(
            "the model has a negative mass for each layer or head, and a schedule would replace them by a single one; "
            "give --negative_mass_start to accept this, or leave out --negative_mass_until"
        )
    if start is None:
        start = own if isinstance(own, int | float) and own > 0 else NEARLY_SOFTMAX
    with as_input_error("--negative_mass_*: "):
        NegativeMassSchedule.check_model(config)
    return _schedule(options, start)


def _schedule(options: ScheduleArguments, start: float) -> NegativeMassSchedule:
    until: Any = options.negative_mass_until  # a number wherever there is a schedule
    with as_input_error("--negative_mass_*: "):
        return NegativeMassSchedule(start, options.negative_mass_end, until=until)


def check_schedule(options: ScheduleArguments, arguments: PretrainedArguments, given: dict) -> None:
    """Refuse schedule options that have no effect, are out of range, or contradict options of the model.

    Raises:
        InputError: a schedule's option without --negative_mass_until, a bad value, or a schedule beside a negative
            mass that is fixed or not used at all.
    """
    if options.negative_mass_until is None:
        named = [name for name in vars(options) if name in given]
        if named:
            raise InputError(f"--{named[0]} needs --negative_mass_until, the share of training that a schedule takes")
        return
    conflicts = {name: getattr(arguments, name) is not None for name in NEGATIVE_MASSES} | {
        "attn_activation": arguments.attn_activation not in (None, *WITH_NEGATIVE_MASS),
        "lora_rank": getattr(arguments, "lora_rank", None) is not None,  # an adapter keeps the attention of its base
    }
    for name, conflicting in conflicts.items():
        if conflicting:
            raise InputError(
                f"--negative_mass_until moves the negative mass of {' or '.join(WITH_NEGATIVE_MASS)}; leave out "
                f"--{name}"
            )
    start = options.negative_mass_start
    _schedule(options, NEARLY_SOFTMAX if start is None else start)  # refuses bad values before any data are read


def check_checkpoint_schedule(schedule: NegativeMassSchedule | None, checkpoint: str | None) -> None:
    """Raise InputError where a run would continue a checkpoint with another schedule than the checkpoint's."""
    if checkpoint is None:
        return
    state = TrainerState.load_from_json(str(Path(checkpoint, "trainer_state.json")))
    if schedule is not None:
        with as_input_error():
            schedule.check_saved(state)
    elif saved := saved_schedule(state):
        raise InputError(f"{checkpoint} was trained with the negative mass schedule {saved}, and this run has none")
