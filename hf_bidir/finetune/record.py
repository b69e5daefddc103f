"""The content of run.json: everything needed to reproduce a run, and to decide whether it can be resumed."""

import os
import platform
import shutil
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, TrainerState, TrainingArguments

from hf_bidir.checkpoints.adapters import base_facts, chosen_fields
from hf_bidir.checkpoints.reading import read_config
from hf_bidir.checkpoints.timm_vit import TIMM_PREFIX
from hf_bidir.common.files import PREVIOUS, RECORD, sha256
from hf_bidir.finetune.arguments import RunArguments
from hf_bidir.finetune.data.arguments import DataArguments, UnlabelledDataArguments
from hf_bidir.finetune.data.image_folder import folder_digest
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.modeling.model_types import is_signed

if TYPE_CHECKING:
    from peft import PeftConfig

LIBRARIES = ("hf-bidir", "torch", "transformers", "datasets", "accelerate", "tokenizers", "scikit-learn")
# options that do not affect losses, so an interrupted run may be resumed with other values
MAY_CHANGE = {
    "output_dir",
    "overwrite_output_dir",
    "per_device_eval_batch_size",
    "resume_from_checkpoint",
    "disable_tqdm",
    "report_to",
    "run_name",
    "base_model",
    "license",
}
# options that do not affect losses as long as the number of examples per step remains the same
PER_PROCESS = {"per_device_train_batch_size", "gradient_accumulation_steps"}
FINISHED = "finished"  # the status
FILES = ("train_file", "validation_file", "test_file")
SCRATCH, FOLDER, HUB, TIMM = "scratch", "folder", "hub", "timm"  # origins of the initial weights


def begin_record(
    task: str,
    given: dict[str, Any],
    data: DataArguments | UnlabelledDataArguments,
    splits: Splits,
    model: PreTrainedModel,
    args: RunArguments,
) -> dict[str, Any]:
    """The record of a run that starts now, with the status "running".

    Args:
        task: the pipeline's name, such as "text-classification".
        given: the options that the user gave, by name.
    """
    return {
        "status": "running",
        "task": task,
        "seed": args.seed,
        "recipe": publishable(given),
        "started_from": _start(given.get("model_name_or_path")),
        "data": {name: _source(name, data) | {"rows": len(split)} for name, split in splits},
        "notes": splits.notes,
        "label_names": splits.names,
        "label_values": splits.values,
        "class_shares": splits.class_shares(),
        **size(model),
        "examples_per_step": args.world_size * args.train_batch_size * args.gradient_accumulation_steps,
        **circumstances(args),
    }


def size(model: PreTrainedModel) -> dict[str, Any]:
    """The number of weights; with an adapter that of its base, and "adapter": what belongs to it and its base."""
    number = model.num_parameters()
    if not hasattr(model, "peft_config"):
        return {"num_parameters": number}
    trained = model.num_parameters(only_trainable=True)
    adapter = {"parameters": trained} | _beside_base(model, next(iter(model.peft_config.values())))
    return {"num_parameters": number - trained, "adapter": adapter}


def _beside_base(model: PreTrainedModel, adapter: "PeftConfig") -> dict[str, Any]:
    """The base of an adapter, and what the model's configs have that those of the base do not; empty if unknown."""
    base, revision = adapter.base_model_name_or_path or "", adapter.revision
    try:
        config = read_config(base, revision)
    except (OSError, ValueError):  # a Trainer of somebody's own, whose base was never saved or has moved
        return {}
    if not is_signed(config.model_type):
        return {}
    found = {"base": base_facts(base, config, revision), "config": chosen_fields(model.config, config)}
    if model.can_generate():
        fields = model.generation_config.to_diff_dict()
        found["generation"] = {name: value for name, value in fields.items() if name != "transformers_version"}
    return found


def circumstances(args: TrainingArguments) -> dict[str, Any]:
    """Processes, library versions and hardware, which affect the metrics of a run."""
    return {"world_size": args.world_size, "versions": library_versions(), "hardware": hardware()}


def ending(state: TrainerState, args: TrainingArguments, resumed_from: str | None, seconds: float) -> dict[str, Any]:
    """Entries added to the record at the end; `seconds` exclude the time before `resumed_from`."""
    best = state.best_model_checkpoint if args.load_best_model_at_end else None
    return {
        "status": FINISHED,
        "best_checkpoint": Path(best).name if best else None,
        "resumed_from": Path(resumed_from).name if resumed_from else None,
        "duration_seconds": round(seconds, 1),
    }


def publishable(given: dict[str, Any]) -> dict[str, Any]:
    """The options without secrets and without local folders.

    Data files are recorded by name only; their hash identifies them.
    """
    return {
        name: _names(value) if name in FILES and value else _without_folders(value)
        for name, value in given.items()
        if name != "token" and not name.endswith("_token")
    }


def _names(files: str | list[str]) -> str | list[str]:
    return Path(files).name if isinstance(files, str) else [Path(file).name for file in files]


def _without_folders(value: Any) -> Any:
    """The value with every absolute path in it shortened to its last part."""
    if isinstance(value, dict):
        return {key: _without_folders(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(entry) for entry in value]
    value = value.value if isinstance(value, Enum) else value
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _start(source: str | None) -> str:
    """The kind of origin of the weights; the recipe has its name."""
    if source is None:
        return SCRATCH
    if source.startswith(TIMM_PREFIX):
        return TIMM
    return FOLDER if Path(source).exists() else HUB


def _source(name: str, data: DataArguments | UnlabelledDataArguments) -> dict[str, str]:
    """Where a split came from: a file with its hash, or a data set's name."""
    files = getattr(data, f"{name}_file", None) or data.train_file  # held-out rows come from the training file
    if files is None:
        return {"source": _without_folders(data.dataset_name)}
    return source_of([Path(file) for file in ([files] if isinstance(files, str) else files)])


def source_of(paths: list[Path]) -> dict[str, str]:
    """The names and the SHA-256 of files, or of folders of images, that are one split."""
    hashes = [sha256(path) if path.is_file() else folder_digest(path) for path in paths if path.exists()]
    # a folder of images is often called train or test
    names = [f"{path.resolve().parent.name}/{path.name}" if path.is_dir() else path.name for path in paths]
    return {"source": ", ".join(names)} | ({"sha256": ", ".join(hashes)} if hashes else {})


def differences(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differences that affect losses, in words; empty if one run can continue the other."""
    free = MAY_CHANGE | PER_PROCESS
    before, after = ({k: v for k, v in run.get("recipe", {}).items() if k not in free} for run in (earlier, now))
    found = [
        f"{name} was {before.get(name, 'not given')} and is {after.get(name, 'not given')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    if earlier.get("data") != now["data"]:
        found.append("the data files differ")
    if (earlier.get("adapter") or {}).get("base") != (now.get("adapter") or {}).get("base"):
        found.append("the weights or the attention of the base model differ")
    batch, batch_now = (run.get("examples_per_step") for run in (earlier, now))
    if batch != batch_now:
        found.append(
            f"a step had {batch} examples, and now {batch_now} (processes x per_device_train_batch_size x "
            "gradient_accumulation_steps)"
        )
    return found


def keep_previous_record(source: str | None, folder: Path) -> None:
    """Copy the record of the run that produced the checkpoint `source`, if there is one, into `folder`."""
    record = Path(source, RECORD) if source else None
    if record and record.is_file():
        shutil.copyfile(record, folder / PREVIOUS)


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that affect metrics."""
    return {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}


def hardware() -> dict[str, Any]:
    """CPU model, cores, threads in use, and GPUs; never the host name."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"cpu": cpu_model(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpus": gpus}


def cpu_model() -> str:
    """The processor's model, as the system names it."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
