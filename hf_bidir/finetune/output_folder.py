"""The output folder of a run: a lock, whether the run may use it, and the checkpoint from which it continues."""

import errno
import json
import logging
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open
from transformers.trainer import TRAINER_STATE_NAME

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.files import PREVIOUS, RECORD
from hf_bidir.finetune.arguments import RunArguments
from hf_bidir.finetune.record import FINISHED, RESULTS, read_record

try:
    import fcntl
except ImportError:  # Windows, where two runs in one folder are not noticed
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

LOCK = ".lock"  # of the process that trains in the folder
# options that do not affect losses, so an interrupted run may be resumed with other values
MAY_CHANGE = {
    *("output_dir", "overwrite_output_dir", "per_device_eval_batch_size", "disable_tqdm", "report_to", "run_name"),
    *("base_model", "license"),
}
# options that do not affect losses as long as the number of examples per step remains the same
PER_PROCESS = {"per_device_train_batch_size", "gradient_accumulation_steps"}
STEP = "examples per step (processes x per_device_train_batch_size x gradient_accumulation_steps)"
HINT = "Choose another --output_dir, or start again in this one with --overwrite_output_dir."


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of an output folder, which is made if need be; the system frees it when a process dies.

    Raises:
        InputError: another process is in it, or it cannot be made.
    """
    with as_input_error("cannot use the output folder: ", OSError):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+", encoding="utf-8")
    with file:
        try:
            if fcntl:  # `lockf`: workers of a data loader, which outlive a killed process, do not inherit it
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):  # or else the file system has no locks
                file.seek(0)
                raise InputError(
                    f"{folder} is in use by {file.read() or 'another process'}. Wait until it ends, or choose another "
                    "--output_dir."
                ) from None
        file.truncate(0)
        print(f"process {os.getpid()} on {platform.node()}", end="", file=file, flush=True)
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # it is empty if the run was refused
                folder.rmdir()


def checkpoint_to_resume(args: RunArguments, record: dict[str, Any]) -> str | None:
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
    if not folder.exists() or all(path.name == LOCK for path in folder.iterdir()):
        return None
    if not (folder / RECORD).is_file():
        raise InputError(f"{folder} is not empty and holds no run ({RECORD} is missing). Choose another --output_dir.")
    if args.overwrite_output_dir:
        for option in ("model_name_or_path", "teacher_name_or_path"):
            source = args.typed.get(option)
            if source and Path(source).resolve().is_relative_to(folder.resolve()):
                raise InputError(
                    f"--overwrite_output_dir would remove {source}, which --{option} names. Choose another "
                    "--output_dir."
                )
        return None
    _check_same_run(folder, record)
    return last_checkpoint(folder)


def _check_same_run(folder: Path, record: dict[str, Any]) -> None:
    """Raise InputError unless the folder holds an interrupted run with this record."""
    try:
        earlier = read_record(folder)
    except ValueError as error:
        raise InputError(f"{folder} holds a run whose {RECORD} cannot be read. {HINT}") from error
    if earlier.get("status") == FINISHED:
        raise InputError(
            f"{folder} holds a finished run. {HINT} To continue from its weights, name it as --model_name_or_path "
            f"{folder}, with another --output_dir and no options that shape a new model."
        )
    if changed := _differences(earlier, record):
        raise InputError(f"{folder} holds an interrupted run with other settings: {'; '.join(changed)}. {HINT}")


def _differences(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differences that affect losses, in words; empty if one run can continue the other."""
    before, after = _facts(earlier), _facts(now)
    return [
        f"{name} was {before.get(name, 'not given')} and is {after.get(name, 'not given')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _facts(record: dict[str, Any]) -> dict[str, Any]:
    """What a record says that affects losses."""
    facts = {name: value for name, value in record.get("recipe", {}).items() if name not in MAY_CHANGE | PER_PROCESS}
    facts["data"] = record.get("data")
    facts["base of the adapter"] = record.get("adapter", {}).get("base")
    facts[STEP] = record.get("examples_per_step")
    return facts


def last_checkpoint(folder: Path) -> str | None:
    """The checkpoint with the most steps, or None; damaged ones are left out with a warning."""
    for checkpoint in reversed(_checkpoints(folder)):
        damaged = damaged_file(checkpoint)
        if damaged is None:
            return str(checkpoint)
        logger.warning("%s is left out: its %s is missing or cut off.", checkpoint, damaged)
    return None


def _checkpoints(folder: Path) -> list[Path]:
    """The Trainer's checkpoint folders, by number of steps; other names, such as `checkpoint-best`, are ignored."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*") if path.is_dir()}
    return sorted((path for path in steps if steps[path].isdigit()), key=lambda path: int(steps[path]))


def damaged_file(checkpoint: Path) -> str | None:
    """The name of a file of a checkpoint that is missing or was cut off, as on a full disk; None if there is none."""
    # the state is the last file that the Trainer writes
    for file in [checkpoint / TRAINER_STATE_NAME, *checkpoint.glob("*.*")]:
        try:
            if file.suffix == ".json":
                json.loads(file.read_text(encoding="utf-8"))
            elif file.suffix == ".safetensors":
                safe_open(file, "pt")
            elif file.suffix in (".pt", ".pth") and not is_zipfile(file):
                return file.name
        except (OSError, ValueError, SafetensorError):
            return file.name
    return None


def clear_run(folder: Path) -> None:
    """Remove the checkpoints, weights, configs, metrics and record of an earlier run; other files stay."""
    for checkpoint in _checkpoints(folder):
        shutil.rmtree(checkpoint)
    for weights in folder.glob("*.safetensors*"):  # a model's or an adapter's, with the index of several files
        weights.unlink()
    # record last: it marks a folder as a run
    for name in ("config.json", "adapter_config.json", RESULTS, PREVIOUS, RECORD):
        (folder / name).unlink(missing_ok=True)
