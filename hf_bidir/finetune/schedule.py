"""The negative mass schedule of a run, from its options, and whether it is that of the checkpoint it continues."""

from pathlib import Path

from transformers import TrainerState

from hf_bidir.finetune.arguments import ModelArguments, ScheduleArguments
from hf_bidir.finetune.errors import InputError, as_input_error
from hf_bidir.schedules import NegativeMassSchedule, saved_schedule


def build_schedule(options: ScheduleArguments | None) -> NegativeMassSchedule | None:
    """The callback that the options describe, or None where they ask for none.

    Raises:
        InputError: a value out of range, or a schedule that ends before it begins.
    """
    if options is None or options.negative_mass_until is None:
        return None
    with as_input_error("--negative_mass_*: "):
        return NegativeMassSchedule(
            options.negative_mass_start,
            options.negative_mass_end,
            begin=options.negative_mass_begin,
            until=options.negative_mass_until,
            shape=options.negative_mass_shape,
            order=options.negative_mass_order,
        )


def check_schedule(options: ScheduleArguments, arguments: ModelArguments, given: dict) -> None:
    """Refuse options of a schedule that nothing would read, or that contradict the model's.

    Raises:
        InputError: a schedule's option without --negative_mass_until, or a schedule beside a negative mass that is
            fixed, learned or not used at all.
    """
    named = [name for name in vars(options) if name in given]
    if options.negative_mass_until is None:
        if named:
            raise InputError(f"--{named[0]} needs --negative_mass_until, the share of training that a schedule takes")
        return
    fixed = [name for name in ("attn_negative_mass", "learn_negative_mass") if getattr(arguments, name)]
    if fixed or arguments.attn_activation not in (None, "tanhmax"):
        raise InputError(
            f"--negative_mass_until moves the negative mass of tanhmax; leave out --{[*fixed, 'attn_activation'][0]}"
        )
    build_schedule(options)


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
