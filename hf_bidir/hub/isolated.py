"""Run a saved checkpoint in a clean process: without `hf_bidir`, from its own files.

That process runs this file by its path: python -I isolated.py FOLDER CLASS INPUTS OUTPUTS.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ != "hf_bidir.hub.isolated":  # an import of the package, even an installed one, now raises ImportError
    sys.modules["hf_bidir"] = None  # type: ignore[assignment]

from safetensors.torch import load_file, save_file
from torch import Tensor, inference_mode

CHILD = Path(__file__)
TIMEOUT = 300  # seconds for the process
LOADING_PROBLEMS = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")


def isolated_forward(folder: str | Path, auto_class: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Load `folder` with remote code in a fresh isolated process, run it once and return its tensor outputs.

    The process starts in an empty folder with `python -I`, an empty remote-code cache and no network, and
    `hf_bidir` cannot be imported there, so that what works here works for a user who has only the folder.

    Args:
        folder: a checkpoint folder with its remote-code files.
        auto_class: the transformers class to load through, such as "AutoModelForImageClassification".
        inputs: the model's keyword arguments.

    Returns:
        The outputs that are tensors (logits, last_hidden_state, ...) by name, on the CPU.

    Raises:
        RuntimeError: loading left a key missing or unexpected, the forward failed, or the time ran out.
    """
    folder = Path(folder).resolve()
    with tempfile.TemporaryDirectory(prefix="isolated-") as scratch:
        inputs_file, outputs_file = Path(scratch, "inputs.safetensors"), Path(scratch, "outputs.safetensors")
        _save(inputs, inputs_file)
        environment = os.environ | {"HF_MODULES_CACHE": str(Path(scratch, "modules")), "HF_HUB_OFFLINE": "1"}
        try:
            subprocess.run(
                [sys.executable, "-I", CHILD, folder, auto_class, inputs_file, outputs_file],
                text=True,
                capture_output=True,
                check=True,
                cwd=scratch,
                env=environment,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{auto_class} from {folder} did not finish within {TIMEOUT} s") from None
        except subprocess.CalledProcessError as error:
            failed = f"{auto_class} from {folder} failed in an isolated process (exit {error.returncode}):"
            lines = error.stderr.strip().splitlines()
            raise RuntimeError("\n".join([failed, *lines[-15:]])) from None
        return load_file(outputs_file)


def main(folder: str, auto_class: str, inputs_file: str, outputs_file: str) -> None:
    """Run the checkpoint; called in the clean process."""
    import transformers

    auto = getattr(transformers, auto_class)
    model, report = auto.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    problems = {name: report[name] for name in LOADING_PROBLEMS if report.get(name)}
    if problems:
        sys.exit(f"the weights do not fit the model: {problems}")
    with inference_mode():
        outputs = model.eval()(**load_file(inputs_file))
    _save(outputs, outputs_file)


def _save(values: Mapping[str, Any], file: str | Path) -> None:
    """Save copies, which share no memory, of the tensors among the values."""
    copies = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            copies[name] = value.detach().cpu().contiguous().clone()
    save_file(copies, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
