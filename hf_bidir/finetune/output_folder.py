"""The output folder of a run: whether the run may use it, and the checkpoint from which it continues."""

import shutil
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME

from hf_bidir.common.errors import InputError
from hf_bidir.common.files import PREVIOUS, RECORD, Json

from .arguments import RunArguments
from .record import FINISHED, RESULTS, read_record

# options that do not affect losses, so an interrupted run may be resumed with other values
MAY_CHANGE = {
    *("output_dir", "overwrite_output_dir", "per_device_eval_batch_size", "disable_tqdm", "report_to", "run_name"),
    *("base_model", "license"),
}
# options that do not affect losses as long as the number of examples per step remains the same
PER_PROCESS = {"per_device_train_batch_size", "gradient_accumulation_steps"}
STEP = "examples per step (processes x per_device_train_batch_size x gradient_accumulation_steps)"
HINT = "Choose another --output_dir, or start again in this one with --overwrite_output_dir."


def checkpoint_to_resume(args: RunArguments, record: Json) -> str | None:
    """Decide, without changing files, whether a run may use its output folder and where it continues.

    Args:
        args: `output_dir` and `overwrite_output_dir`.
        record: the record of the run that is about to start.

    Returns:
        The checkpoint to continue from, or None to start at the first step.

    Raises:
        InputError: the folder holds a finished run, a different run or other files; or overwriting it would remove the
            checkpoint that the run starts from.
    """
    folder = Path(args.output_dir)
    if not folder.exists() or not any(folder.iterdir()):
        return None
    if not (folder / RECORD).is_file():
        raise InputError(f"{folder} is not empty and holds no run ({RECORD} is missing). Choose another --output_dir.")
    if args.overwrite_output_dir:
        _check_keeps_sources(folder, args)
        return None
    _check_same_run(folder, record)
    # the state is the last file that the Trainer writes
    complete = [checkpoint for checkpoint in _checkpoints(folder) if (checkpoint / TRAINER_STATE_NAME).is_file()]
    return str(complete[-1]) if complete else None


def _check_keeps_sources(folder: Path, args: RunArguments) -> None:
    """Raise InputError if the run starts from a checkpoint in the folder that it overwrites."""
    for option in ("model_name_or_path", "teacher_name_or_path"):
        source = args.typed.get(option)
        if source and Path(source).resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"--overwrite_output_dir would remove {source}, which --{option} names. Choose another --output_dir."
            )


def _check_same_run(folder: Path, record: Json) -> None:
    """Raise InputError unless the folder holds an interrupted run with this record."""
    earlier = read_record(folder)
    if earlier.get("status") == FINISHED:
        raise InputError(
            f"{folder} holds a finished run. {HINT} To continue from its weights, name it as --model_name_or_path "
            f"{folder}, with another --output_dir and no options that shape a new model."
        )
    before, after = _facts(earlier), _facts(record)
    changed = []
    for name in sorted(before.keys() | after.keys()):
        was, now = (facts.get(name, "not given") for facts in (before, after))
        if was != now:
            changed.append(f"{name} was {was} and is {now}")
    if changed:
        raise InputError(f"{folder} holds an interrupted run with other settings: {'; '.join(changed)}. {HINT}")


def _facts(record: Json) -> Json:
    """What a record says that affects losses."""
    facts = {name: value for name, value in record.get("recipe", {}).items() if name not in MAY_CHANGE | PER_PROCESS}
    facts["data"] = record.get("data")
    facts["base of the adapter"] = record.get("adapter", {}).get("base")
    facts[STEP] = record.get("examples_per_step")
    return facts


def _checkpoints(folder: Path) -> list[Path]:
    """The Trainer's checkpoint folders, by number of steps; other names, such as `checkpoint-best`, are ignored."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")}
    numbered = [path for path in steps if steps[path].isdigit()]
    return sorted(numbered, key=lambda path: int(steps[path]))


def clear_run(folder: Path) -> None:
    """Remove the checkpoints, weights, configs, metrics and record of an earlier run; other files stay."""
    for checkpoint in _checkpoints(folder):
        shutil.rmtree(checkpoint)
    for weights in folder.glob("*.safetensors*"):  # a model's or an adapter's, with the index of several files
        weights.unlink()
    # record last: it marks a folder as a run
    for name in ("config.json", "adapter_config.json", RESULTS, PREVIOUS, RECORD):
        (folder / name).unlink(missing_ok=True)
