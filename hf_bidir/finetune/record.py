"""The record of a run, run.json, and the decision whether a run may start or resume in an output folder."""

import errno
import json
import logging
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import datetime
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel, TrainerState, TrainingArguments

from hf_bidir.checkpoints.adapters import base_facts, chosen_fields
from hf_bidir.checkpoints.reading import read_config
from hf_bidir.checkpoints.timm_vit import TIMM_PREFIX
from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.files import PREVIOUS, RECORD, save_figure, sha256
from hf_bidir.common.model_types import is_signed
from hf_bidir.finetune.arguments import RunArguments, ScheduleArguments, SourceArguments
from hf_bidir.finetune.data.sources import folder_digest
from hf_bidir.finetune.data.splits import Splits

if TYPE_CHECKING:
    from peft import PeftConfig

try:
    import fcntl
except ImportError:  # Windows, where two runs in one folder are not noticed
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

RESULTS, CURVE, CARD = "all_results.json", "loss_curve.png", "README.md"
PICTURE = "validation-example.png"
LOCK = ".lock"  # of the process that trains in the folder
STATE = "trainer_state.json"  # the last file that the Trainer writes into a checkpoint
LIBRARIES = ("hf-bidir", "torch", "transformers", "datasets", "accelerate", "tokenizers", "scikit-learn")
# options that do not affect losses, so an interrupted run may be resumed with other values
MAY_CHANGE = {
    *("output_dir", "overwrite_output_dir", "per_device_eval_batch_size", "resume_from_checkpoint", "disable_tqdm"),
    *("report_to", "run_name", "base_model", "license"),
}
# options that do not affect losses as long as the number of examples per step remains the same
PER_PROCESS = {"per_device_train_batch_size", "gradient_accumulation_steps"}
FINISHED = "finished"  # the status
FILES = ("train_file", "validation_file", "test_file")
PLACE = "path/to/"  # stands in a record for where a file or folder lies on the machine of the run
SHOWN_SETTINGS = (  # of TrainingArguments, also where they are defaults
    "learning_rate", "lr_scheduler_type", "warmup_ratio", "weight_decay", "optim", "max_grad_norm", "num_train_epochs",
    "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16",
    "early_stopping_patience", "metric_for_best_model", "load_best_model_at_end",
)  # fmt: skip
SCRIPTS = (
    "text_classification.py", "image_classification.py", "recurrent_classification.py", "masked_lm.py", "causal_lm.py",
    "seq2seq.py", "distill.py",
)  # fmt: skip
SCRATCH, FOLDER, HUB, TIMM = "scratch", "folder", "hub", "timm"  # origins of the initial weights


def begin_record(
    task: str,
    data: SourceArguments,
    splits: Splits,
    model: PreTrainedModel,
    args: RunArguments,
    schedule: ScheduleArguments | None = None,
) -> dict[str, Any]:
    """The record of a run that starts now, with the status "running"; `task` is the pipeline's name."""
    return {
        "status": "running",
        "task": task,
        "seed": args.seed,
        "script": script(),
        "recipe": publishable(args.typed),
        "defaults": default_settings(args, data, schedule),
        "started_from": _origin(args.typed.get("model_name_or_path")),
        "data": {name: _source(name, data) | {"rows": len(split)} for name, split in splits},
        "notes": splits.notes,
        "label_names": splits.names,
        "label_values": splits.values,
        "class_shares": splits.class_shares(),
        **size(model),
        "examples_per_step": args.world_size * args.train_batch_size * args.gradient_accumulation_steps,
    }


def script() -> str | None:
    """The training script that runs, from which a card makes the command; None for another program."""
    name = Path(sys.argv[0]).name
    return name if name in SCRIPTS else None


def default_settings(args: RunArguments, *groups: Any) -> dict[str, Any]:
    """The settings that nobody gave, as they are used: of training, and of the other option groups; without those that
    are None."""
    used = {name: getattr(args, name, None) for name in SHOWN_SETTINGS}
    used |= {field.name: getattr(group, field.name) for group in groups if group for field in fields(group)}
    left = {name: value for name, value in used.items() if name not in args.typed and name not in FILES}
    return publishable({name: value for name, value in left.items() if value is not None})


def size(model: PreTrainedModel) -> dict[str, Any]:
    """The number of parameters; for a model with an adapter that of its base, and under "adapter" facts about both."""
    number = model.num_parameters()
    if not hasattr(model, "peft_config"):
        return {"num_parameters": number}
    trained = model.num_parameters(only_trainable=True)
    adapter = {"parameters": trained} | _beside_base(model, next(iter(model.peft_config.values())))
    return {"num_parameters": number - trained, "adapter": adapter}


def _beside_base(model: PreTrainedModel, adapter: "PeftConfig") -> dict[str, Any]:
    """The base of an adapter, and the config fields in which the model differs; empty if the base is unknown."""
    base, revision = adapter.base_model_name_or_path or "", adapter.revision
    try:
        config = read_config(base, revision)
    except (OSError, ValueError):  # of a user's own Trainer: the base was never saved, or has moved
        return {}
    if not is_signed(type(config).model_type):
        return {}
    facts = {"base": base_facts(base, config, revision), "config": chosen_fields(model.config, config)}
    if model.can_generate():
        fields = model.generation_config.to_diff_dict()
        facts["generation"] = {name: value for name, value in fields.items() if name != "transformers_version"}
    return facts


def circumstances(args: TrainingArguments) -> dict[str, Any]:
    """Processes, library versions and hardware, which affect the metrics of a run; never the host name."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    hardware = {"cpu": cpu_model(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpus": gpus}
    return {"world_size": args.world_size, "versions": library_versions(), "hardware": hardware}


def ending(state: TrainerState, args: TrainingArguments, resumed_from: str | None, seconds: float) -> dict[str, Any]:
    """Entries added to the record at the end; `seconds` exclude the time before `resumed_from`."""
    best = state.best_model_checkpoint if args.load_best_model_at_end else None
    return {
        "status": FINISHED,
        "best_checkpoint": Path(best).name if best else None,
        "resumed_from": Path(resumed_from).name if resumed_from else None,
        "duration_seconds": round(seconds, 1),
    }


def publishable(typed: dict[str, Any]) -> dict[str, Any]:
    """The options without secrets and local folders: of a file or folder only the last part is kept, after `PLACE`."""
    return {
        name: _without_places(name, value)
        for name, value in typed.items()
        if name != "token" and not name.endswith("_token")
    }


def _without_places(option: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_places(key, entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_places(option, entry) for entry in value]
    value = value.value if isinstance(value, Enum) else value
    return PLACE + Path(value).name if isinstance(value, str) and _is_place(option, value) else value


def _is_place(option: str, value: str) -> bool:
    """Whether the value of an option is a file or folder of this machine, and no name on the Hub."""
    if option in FILES or Path(value).is_absolute():
        return True
    return option.endswith(("_name_or_path", "dataset_name")) and Path(value).exists()


def _origin(source: str | None) -> str:
    """The kind of origin of the weights; the recipe has its name."""
    if source is None:
        return SCRATCH
    if source.startswith(TIMM_PREFIX):
        return TIMM
    return FOLDER if Path(source).exists() else HUB


def _source(name: str, data: SourceArguments) -> dict[str, str]:
    """Where a split came from: a file with its hash, or a data set's name."""
    files = data.files.get(name, data.files.get("train"))  # held-out rows come from the training file
    if files is None:
        return {"source": data.dataset_name and _without_places("dataset_name", data.dataset_name).removeprefix(PLACE)}
    return source_of([Path(file) for file in ([files] if isinstance(files, str) else files)])


def source_of(paths: list[Path]) -> dict[str, str]:
    """The names and the SHA-256 of files, or of folders of images, that are one split."""
    hashes = [sha256(path) if path.is_file() else folder_digest(path) for path in paths if path.exists()]
    # a folder of images is often called train or test
    names = [f"{path.resolve().parent.name}/{path.name}" if path.is_dir() else path.name for path in paths]
    return {"source": ", ".join(names)} | ({"sha256": ", ".join(hashes)} if hashes else {})


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that affect metrics."""
    return {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}


def cpu_model() -> str:
    """The processor's model, as the system names it."""
    information = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", information.read_text(), re.MULTILINE) if information.is_file() else []
    return names[0].strip() if names else platform.processor() or platform.machine()


def read_record(folder: Path) -> dict[str, Any]:
    """The run.json of a folder, or an empty dictionary."""
    try:
        return json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def is_finished(folder: Path) -> bool:
    """Whether the folder holds a finished run."""
    return read_record(folder).get("status") == FINISHED


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
            if (
                fcntl
            ):  # `lockf`: workers of a data loader, which outlive a killed process for seconds, do not inherit it
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):  # others: the file system has no locks
                file.seek(0)
                raise InputError(
                    f"{folder} is in use by {file.read() or 'another process'}. Wait until it ends, or choose another "
                    "--output_dir."
                ) from None
        file.truncate(0)
        now = datetime.now().isoformat(" ", "minutes")
        print(f"process {os.getpid()} on {platform.node()} since {now}", end="", file=file, flush=True)
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # it is empty if the run was refused
                folder.rmdir()


def checkpoint_to_resume(args: RunArguments, record: dict[str, Any]) -> str | None:
    """Decide, without changing files, whether a run may use its output folder and where it continues.

    Args:
        args: `output_dir`, `overwrite_output_dir` and `resume_from_checkpoint` ("auto", "never" or a folder).
        record: the record of the run that is about to start.

    Returns:
        The checkpoint to continue from, or None to start at the first step.

    Raises:
        InputError: the folder holds a finished run, a different run or other files; overwriting it would remove a
            checkpoint that is needed; or `resume_from_checkpoint` is not a checkpoint.
    """
    folder, resume = Path(args.output_dir), args.resume_from_checkpoint
    if folder.exists() and any(path.name != LOCK for path in folder.iterdir()):
        if not (folder / RECORD).is_file():
            raise InputError(
                f"{folder} is not empty and holds no run ({RECORD} is missing). Choose another --output_dir."
            )
        if args.overwrite_output_dir:
            needed = {"model_name_or_path": args.typed.get("model_name_or_path"), "resume_from_checkpoint": resume}
            for option, path in needed.items():
                if path and Path(path).exists() and Path(path).resolve().is_relative_to(folder.resolve()):
                    raise InputError(
                        f"--overwrite_output_dir would remove {path}, which --{option} names. Choose another "
                        "--output_dir."
                    )
        else:
            _check_resumable(folder, record, resume)
    if resume == "auto":
        return None if args.overwrite_output_dir else last_checkpoint(folder)
    if resume in ("never", None):
        return None
    if name := damaged_file(Path(resume)):
        raise InputError(
            f"expected auto, never or the folder of a Trainer checkpoint; in {resume} {name} is missing or cut off"
        )
    return resume


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
    if changed := _differences(earlier, record):
        raise InputError(f"{folder} holds an interrupted run with other settings: {'; '.join(changed)}. {hint}")


def _differences(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differences that affect losses, in words; empty if one run can continue the other."""
    before, after = earlier.get("recipe", {}), now["recipe"]
    differences = [
        f"{name} was {before.get(name, 'not given')} and is {after.get(name, 'not given')}"
        for name in sorted((before.keys() | after.keys()) - MAY_CHANGE - PER_PROCESS)
        if before.get(name) != after.get(name)
    ]
    if earlier.get("data") != now["data"]:
        differences.append("the data files differ")
    if (earlier.get("adapter") or {}).get("base") != (now.get("adapter") or {}).get("base"):
        differences.append("the weights or the attention of the base model differ")
    batch, batch_now = (run.get("examples_per_step") for run in (earlier, now))
    if batch != batch_now:
        differences.append(
            f"a step had {batch} examples, and now {batch_now} (processes x per_device_train_batch_size x "
            "gradient_accumulation_steps)"
        )
    return differences


def last_checkpoint(folder: Path) -> str | None:
    """The checkpoint with the most steps, or None; damaged ones are left out with a warning."""
    for checkpoint in reversed(_checkpoints(folder)):
        name = damaged_file(checkpoint)
        if name is None:
            return str(checkpoint)
        logger.warning("%s is left out: its %s is missing or cut off.", checkpoint, name)
    return None


def _checkpoints(folder: Path) -> list[Path]:
    """The Trainer's checkpoint folders, by number of steps; other names, such as `checkpoint-best`, are ignored."""
    numbered = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(filter(Path.is_dir, numbered), key=lambda path: int(path.name.rpartition("-")[2]))


def damaged_file(checkpoint: Path) -> str | None:
    """The name of a file of a checkpoint that is missing or was cut off, as on a full disk; None if there is none."""
    for file in [checkpoint / STATE, *checkpoint.glob("*.*")]:
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
    """Remove the checkpoints, record, metrics and pictures of an earlier run; other files stay."""
    for checkpoint in _checkpoints(folder):
        shutil.rmtree(checkpoint)
    for name in (RESULTS, CURVE, PICTURE, PREVIOUS, RECORD):  # record last: it marks a folder as a run
        (folder / name).unlink(missing_ok=True)


def save_loss_curve(log_history: list[dict], path: Path, title: str = "") -> None:
    """Draw training and validation loss, and validation accuracy (or exact match) if there is any, over epochs.

    Args:
        log_history: `trainer.state.log_history`.
    """
    accuracies = {"eval_accuracy": "validation", "eval_exact_match": "validation, exact match"}
    panels = {"loss": {"loss": "training", "eval_loss": "validation"}}
    if any(accuracies.keys() & entry.keys() for entry in log_history):
        panels["accuracy"] = accuracies
    figure = Figure(figsize=(4.5 * len(panels), 3.5), layout="constrained")
    FigureCanvasAgg(figure)  # rather than pyplot, whose figures are global state
    for axes, (name, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for key, label in curves.items():
            # the evaluation after training is of the best checkpoint, but logged at the last epoch: the first counts
            points = {entry["epoch"]: entry[key] for entry in reversed(log_history) if key in entry}
            if points:
                epochs = sorted(points)
                marker = "." if len(points) < 30 else None
                axes.plot(epochs, [points[epoch] for epoch in epochs], marker=marker, label=label)
                axes.legend()
        axes.set(xlabel="epoch", ylabel=name)
    figure.suptitle(title)
    save_figure(figure, path, dpi=120)
