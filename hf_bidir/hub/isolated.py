"""Run a saved checkpoint in a clean process: without `hf_bidir`, from its own files."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import snapshot_download
from safetensors.torch import load_file, save_file
from torch import Tensor

from hf_bidir.checkpoints.adapters import adapter_config, base_of
from hf_bidir.checkpoints.reading import read_config

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
    base = _base_folder(folder) if adapter_config(folder) else None
    if base is None and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"expected a checkpoint folder with a config.json; {folder} has none")
    with tempfile.TemporaryDirectory(prefix="isolated-") as scratch:
        inputs_file, outputs_file = Path(scratch, "inputs.safetensors"), Path(scratch, "outputs.safetensors")
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in inputs.items()}, inputs_file)
        files: list[str | Path] = [CHILD, folder, auto_class, inputs_file, outputs_file]
        if base is not None:
            files += [base, str(read_config(folder).num_labels)]
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


def _base_folder(adapter: Path) -> Path:
    """The folder of an adapter's base model, with its code, downloaded if it is on the Hub."""
    base = base_of(adapter)
    if Path(base).is_dir():
        return Path(base).resolve()
    return Path(snapshot_download(base, allow_patterns=["*.json", "*.py", "*.safetensors"], ignore_patterns=["*/*"]))
