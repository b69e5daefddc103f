"""What run.json says about a run: enough to repeat it, and to tell whether a folder may be resumed."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_bidir.finetune.arguments import DataArguments, RunArguments
from hf_bidir.finetune.files import sha256
from hf_bidir.finetune.splits import Splits

LIBRARIES = ("torch", "transformers", "datasets", "accelerate", "tokenizers", "scikit-learn")
# changing one of these in an interrupted run changes none of its losses
MAY_CHANGE = {
    "output_dir",
    "overwrite_output_dir",
    "resume_from_checkpoint",
    "disable_tqdm",
    "report_to",
    "run_name",
}
FILES = ("train_file", "validation_file", "test_file")


def begin_record(
    task: str,
    given: dict[str, Any],
    data: DataArguments,
    splits: Splits,
    model: PreTrainedModel,
    args: RunArguments,
) -> dict[str, Any]:
    """The record of a run that starts now, with the status "running".

    Args:
        task: the pipeline's name, such as "text-classification".
        given: the options that the user gave, as `parse_recipe` returns them.
    """
    # a data file is named without its folder and known by its hash, so that a published record tells no local
    # paths
    recipe = {name: Path(value).name if name in FILES else _plain(value) for name, value in given.items()}
    for name in ("model_name_or_path", "output_dir"):
        if recipe.get(name) and Path(recipe[name]).is_absolute():
            recipe[name] = Path(recipe[name]).name
    return {
        "status": "running",
        "task": task,
        "seed": args.seed,
        "recipe": recipe,
        "data": {name: _source(name, data) | {"rows": len(split)} for name, split in splits},
        "notes": splits.notes,
        "label_names": splits.names,
        "class_shares": splits.class_shares(),
        "num_parameters": model.num_parameters(),
        "world_size": args.world_size,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES},
        "hardware": hardware(),
    }


def _source(name: str, data: DataArguments) -> dict[str, str]:
    """Where a split came from: a file with its hash, or a data set's name."""
    file = getattr(data, f"{name}_file") or data.train_file  # what was held out comes from the training file
    if file is None:
        return {"source": data.dataset_name}
    path = Path(file)
    return {"source": path.name} | ({"sha256": sha256(path)} if path.is_file() else {})


def _plain(value: Any) -> Any:
    return value.value if hasattr(value, "value") else value


def differences(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What makes the losses of two records differ, in words; nothing when one can continue the other."""
    before, after = (
        {k: v for k, v in run.get("recipe", {}).items() if k not in MAY_CHANGE} for run in (earlier, now)
    )
    found = [
        f"{name} was {before.get(name, 'not given')} and is {after.get(name, 'not given')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    if earlier.get("data") != now["data"]:
        found.append("the data files differ")
    if earlier.get("world_size") != now["world_size"]:
        found.append(f"{earlier.get('world_size')} processes were used, and now {now['world_size']}")
    return found


def hardware() -> dict[str, Any]:
    """The machine by what it is, never by its name: CPU model, cores, threads in use, and GPUs."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"cpu": _cpu_model(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpus": gpus}


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
