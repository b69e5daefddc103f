"""The output folder: new, interrupted or finished, and never overwritten silently."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import RunArguments
from hf_bidir.finetune.record import FINISHED, PREVIOUS, RECORD, differences

RESULTS, CURVE, CARD = "all_results.json", "loss_curve.png", "README.md"


def checkpoint_to_resume(args: RunArguments, record: dict[str, Any], model: str | None = None) -> str | None:
    """Decide, without changing files, whether a run may use its output folder and where it continues.

    Args:
        args: `output_dir`, `overwrite_output_dir` and `resume_from_checkpoint` ("auto", "never" or a folder).
        record: the record of the run that is about to start.
        model: the checkpoint that the weights start from, or None.

    Returns:
        The checkpoint to continue from, or None to start at the first step.

    Raises:
        InputError: the folder holds a finished run, a different run or other files; overwriting it would remove a
            checkpoint that is needed; or `resume_from_checkpoint` is not a checkpoint.
    """
    folder, resume = Path(args.output_dir), args.resume_from_checkpoint
    in_use = folder.exists() and any(folder.iterdir())
    if in_use:
        if not (folder / RECORD).is_file():
            raise InputError(
                f"{folder} is not empty and holds no run ({RECORD} is missing). Choose another --output_dir."
            )
        if args.overwrite_output_dir:
            _check_not_inside(folder, "--model_name_or_path", model)
            _check_not_inside(folder, "--resume_from_checkpoint", resume)
        else:
            _check_resumable(folder, record, resume)
    if resume == "auto":
        return None if args.overwrite_output_dir else last_checkpoint(folder)
    if resume in ("never", None):
        return None
    if not _is_complete(Path(resume)):
        raise InputError(f"expected auto, never or the folder of a Trainer checkpoint; {resume} is not one")
    return resume


def _check_not_inside(folder: Path, option: str, source: str | None) -> None:
    if source and Path(source).exists() and Path(source).resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"--overwrite_output_dir would remove {source}, which {option} names. Choose another --output_dir."
        )


def _check_resumable(folder: Path, record: dict[str, Any], resume: str | None) -> None:
    earlier = read_record(folder)
    hint = "Choose another --output_dir, or start again in this one with --overwrite_output_dir."
    if not earlier:
        raise InputError(f"{folder} holds a run whose {RECORD} cannot be read. {hint}")
    if earlier.get("status") == FINISHED:
        raise InputError(
            f"{folder} holds a finished run. {hint} To continue from its weights, name it as "
            f"--model_name_or_path {folder}, with another --output_dir and no options that shape a new model."
        )
    if resume in ("never", None):
        raise InputError(f"{folder} holds an interrupted run, and --resume_from_checkpoint is {resume}. {hint}")
    if changed := differences(earlier, record):
        raise InputError(f"{folder} holds an interrupted run with other settings: {'; '.join(changed)}. {hint}")


def is_finished(folder: Path) -> bool:
    """Whether the folder holds a finished run."""
    return read_record(folder).get("status") == FINISHED


def read_record(folder: Path) -> dict[str, Any]:
    """The run.json of a folder, or an empty dictionary."""
    try:
        return json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def last_checkpoint(folder: Path) -> str | None:
    """The complete checkpoint with the most steps, or None."""
    return next((str(path) for path in reversed(_checkpoints(folder)) if _is_complete(path)), None)


def _checkpoints(folder: Path) -> list[Path]:
    """The Trainer's checkpoint folders, by number of steps; other names, such as `checkpoint-best`, are ignored."""
    numbered = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(filter(Path.is_dir, numbered), key=lambda path: int(path.name.rpartition("-")[2]))


def _is_complete(checkpoint: Path) -> bool:
    """Whether the Trainer finished writing a checkpoint; its state is the last file it writes."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return False
    return True


def clear_run(folder: Path) -> None:
    """Remove the checkpoints, record, metrics and loss curve of an earlier run; other files stay."""
    for checkpoint in _checkpoints(folder):
        shutil.rmtree(checkpoint)
    for name in (RESULTS, CURVE, PREVIOUS, RECORD):  # record last: it marks a folder as a run
        (folder / name).unlink(missing_ok=True)
