"""The record of a run, run.json: what resuming, cards and evaluation read."""

import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from hf_bidir.checkpoints.adapters import base_facts, chosen_fields
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.common.files import RECORD, Json, read_json, sha256
from hf_bidir.common.model_types import is_signed

from .arguments import RunArguments, SourceArguments
from .data.sources import folder_digest
from .data.splits import Splits

RESULTS = "all_results.json"
LIBRARIES = ("hf-bidir", "torch", "transformers", "datasets", "accelerate", "tokenizers", "scikit-learn")
FEW = 50  # rows below which a metric says little
FINISHED = "finished"  # the status
FILES = ("train_file", "validation_file", "test_file")
PLACE = "path/to/"  # stands in a record for where a file or folder lies on the machine of the run
SCRIPTS = (
    "text_classification.py", "image_classification.py", "recurrent_classification.py", "masked_lm.py", "causal_lm.py",
    "seq2seq.py", "distill.py",
)  # fmt: skip


def begin_record(task: str, data: SourceArguments, splits: Splits, model: PreTrainedModel, args: RunArguments) -> Json:
    """The record of a run that starts now, with the status "running"; `task` is the pipeline's name."""
    program = Path(sys.argv[0]).name
    return {
        "status": "running",
        "task": task,
        "seed": args.seed,
        "script": program if program in SCRIPTS else None,
        "recipe": publishable(args.typed),
        "data": {name: _source(name, data) | {"rows": len(split)} for name, split in splits},
        "notes": splits.notes,
        "label_values": splits.values,
        "class_shares": _class_shares(splits) if splits.names else {},
        **size(model),
        "examples_per_step": args.world_size * args.train_batch_size * args.gradient_accumulation_steps,
        "world_size": args.world_size,
        "versions": library_versions(),
        "hardware": hardware(),
    }


def _class_shares(splits: Splits) -> dict[str, float]:
    """The share of each class in the training split."""
    counts = np.bincount(splits.train["label"], minlength=len(splits.names))
    return dict(zip(splits.names, (counts / counts.sum()).tolist(), strict=True))


def read_record(folder: Path) -> Json:
    """The run.json of a folder, or an empty dictionary."""
    return read_json(folder / RECORD)


def is_finished(folder: Path) -> bool:
    """Whether the folder holds a finished run."""
    return read_record(folder).get("status") == FINISHED


def size(model: PreTrainedModel) -> Json:
    """The number of parameters; for a model with an adapter that of its base, and under "adapter" facts about both."""
    parameters = model.num_parameters()
    if not hasattr(model, "peft_config"):
        return {"num_parameters": parameters}
    trained = model.num_parameters(only_trainable=True)
    adapter = {"parameters": trained} | _beside_base(model, next(iter(model.peft_config.values())))
    return {"num_parameters": parameters - trained, "adapter": adapter}


def _beside_base(model: PreTrainedModel, adapter: Any) -> Json:
    """The base of an adapter, and the config fields in which the model differs; empty if the base is unknown."""
    base, revision = adapter.base_model_name_or_path or "", adapter.revision
    try:
        config = open_checkpoint(base, revision=revision).config
    except (OSError, ValueError):  # of a user's own Trainer: the base was never saved, or has moved
        return {}
    if is_signed(type(config).model_type) != is_signed(
        type(model.config).model_type
    ):  # signed in memory, as in the middle of a run
        return {}
    facts = {"base": base_facts(base, config, revision), "config": chosen_fields(model.config, config)}
    if model.can_generate():
        generation = model.generation_config.to_diff_dict()
        generation.pop("transformers_version", None)
        facts["generation"] = generation
    return facts


def hardware() -> Json:
    """The processors, which affect the metrics of a run."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that affect metrics."""
    return {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}


def cpu_model() -> str:
    """The processor's model, as the system names it."""
    information = Path("/proc/cpuinfo")
    text = information.read_text() if information.is_file() else ""
    named = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def publishable(options: Json) -> Json:
    """The options without secrets and local folders: of a file or folder only the last part is kept, after `PLACE`."""
    return {name: _without_places(name, value) for name, value in options.items() if not name.endswith("token")}


def _without_places(option: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_without_places(option, entry) for entry in value]
    if isinstance(value, str) and _is_place(option, Path(value)):
        return PLACE + Path(value).name
    return value


def _is_place(option: str, path: Path) -> bool:
    """Whether the value of an option is a file or folder of this machine, and no name on the Hub."""
    if option in FILES or path.is_absolute():
        return True
    return option.endswith(("_name_or_path", "dataset_name")) and path.exists()


def _source(name: str, data: SourceArguments) -> dict[str, str]:
    """Where a split came from: a file with its hash, or a data set's name."""
    files = data.files.get(name, data.files.get("train"))  # held-out rows come from the training file
    if files is None:
        return {"source": _without_places("dataset_name", data.dataset_name).removeprefix(PLACE)}
    return source_of([Path(file) for file in files])


def source_of(paths: list[Path]) -> dict[str, str]:
    """The names and the SHA-256 of files, or of folders of images, that are one split."""
    names, hashes = [], []
    for path in paths:
        if path.is_dir():  # often called train or test
            names.append(f"{path.resolve().parent.name}/{path.name}")
            hashes.append(folder_digest(path))
        else:
            names.append(path.name)
            if path.exists():  # or else reading it names it
                hashes.append(sha256(path))
    return {"source": ", ".join(names), "sha256": ", ".join(hashes)}
