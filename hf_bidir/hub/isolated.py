"""Run a saved checkpoint in a clean process: without `hf_bidir`, from its own files."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors.torch import load_file, save_file
from torch import Tensor

from hf_bidir.checkpoints.adapters import Adapter, read_adapter

CHILD = Path(__file__).with_name("isolated_child.py")
LINES_SHOWN = 15


def isolated_forward(
    folder: str | Path, auto_class: str, inputs: Mapping[str, Tensor], *, timeout: float = 300
) -> dict[str, Tensor]:
    """Load `folder` with remote code in a fresh isolated process, run it once and return its tensor outputs.

    The process starts in an empty folder with `python -I`, an empty remote-code cache and no network, and
    `hf_bidir` cannot be imported there, so that what works here works for a user who has only the folder.

    Args:
        folder: a checkpoint folder with its remote-code files, or an adapter, whose base is on the Hub or a folder.
        auto_class: the transformers class to load through, such as "AutoModelForImageClassification".
        inputs: the model's keyword arguments.
        timeout: seconds to wait for the process.

    Returns:
        The outputs that are tensors (logits, last_hidden_state, ...) by name, on the CPU.

    Raises:
        FileNotFoundError: `folder` has neither a config.json nor an adapter.
        RuntimeError: loading left a key missing or unexpected, the forward failed, or the time ran out.
    """
    folder = Path(folder).resolve()
    adapter = read_adapter(folder)
    if adapter is None and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"expected a checkpoint folder with a config.json; {folder} has none")
    with tempfile.TemporaryDirectory(prefix="isolated-") as scratch:
        inputs_file, outputs_file = Path(scratch, "inputs.safetensors"), Path(scratch, "outputs.safetensors")
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in inputs.items()}, inputs_file)
        files: list[str | Path] = [CHILD, folder, auto_class, inputs_file, outputs_file]
        if adapter is not None:
            files += [_base_folder(adapter), json.dumps(adapter.changes)]
        try:
            done = subprocess.run(
                [sys.executable, "-I", *files],
                cwd=scratch,
                env=os.environ | {"HF_MODULES_CACHE": str(Path(scratch, "modules")), "HF_HUB_OFFLINE": "1"},
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{auto_class} from {folder} did not finish within {timeout:g} s") from None
        if done.returncode:
            last_lines = "\n".join(done.stderr.strip().splitlines()[-LINES_SHOWN:])
            exit_code = f"exit {done.returncode}"
            raise RuntimeError(f"{auto_class} from {folder} failed in an isolated process ({exit_code}):\n{last_lines}")
        return load_file(outputs_file)


def _base_folder(adapter: Adapter) -> Path:
    """The folder of an adapter's base model, with its code, downloaded if it is on the Hub."""
    if Path(adapter.base).is_dir():
        return Path(adapter.base).resolve()
    files: dict[str, Any] = {"allow_patterns": ["*.json", "*.py", "*.safetensors"], "ignore_patterns": ["*/*"]}
    return Path(snapshot_download(adapter.base, revision=adapter.revision, **files))
