"""Run a saved checkpoint in a clean process: without `hf_bidir`, from its own files.

That process runs this file by its path: python -I isolated.py FOLDER CLASS INPUTS OUTPUTS [BASE CHANGES]. BASE is the
folder of the base model if FOLDER is an adapter, and CHANGES the fields of its config, in JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ != "hf_bidir.hub.isolated":  # an import of the package, even an installed one, now raises ImportError
    sys.modules["hf_bidir"] = None  # type: ignore[assignment]

from safetensors.torch import load_file, save_file
from torch import Tensor, inference_mode

if TYPE_CHECKING:
    from hf_bidir.checkpoints.adapters import Adapter

CHILD = Path(__file__)
LOADING_PROBLEMS = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")


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
    from hf_bidir.checkpoints.adapters import read_adapter

    folder = Path(folder).resolve()
    adapter = read_adapter(folder)
    if adapter is None and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"expected a checkpoint folder with a config.json; {folder} has none")
    with tempfile.TemporaryDirectory(prefix="isolated-") as scratch:
        inputs_file, outputs_file = Path(scratch, "inputs.safetensors"), Path(scratch, "outputs.safetensors")
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in inputs.items()}, inputs_file)
        words: list[str | Path] = [CHILD, folder, auto_class, inputs_file, outputs_file]
        if adapter is not None:
            words += [_base_folder(adapter), json.dumps(adapter.changes)]
        environment = os.environ | {"HF_MODULES_CACHE": str(Path(scratch, "modules")), "HF_HUB_OFFLINE": "1"}
        options: dict[str, Any] = {"cwd": scratch, "env": environment, "text": True, "timeout": timeout}
        try:
            done = subprocess.run([sys.executable, "-I", *words], capture_output=True, check=False, **options)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{auto_class} from {folder} did not finish within {timeout:g} s") from None
        if done.returncode:
            failed = f"{auto_class} from {folder} failed in an isolated process (exit {done.returncode}):"
            raise RuntimeError("\n".join([failed, *done.stderr.strip().splitlines()[-15:]]))
        return load_file(outputs_file)


def _base_folder(adapter: "Adapter") -> Path:
    """The folder of an adapter's base model, with its code, downloaded if it is on the Hub."""
    from huggingface_hub import snapshot_download

    if Path(adapter.base).is_dir():
        return Path(adapter.base).resolve()
    files = ["*.json", "*.py", "*.safetensors"]
    return Path(snapshot_download(adapter.base, revision=adapter.revision, allow_patterns=files, ignore_patterns="*/*"))


def main(folder: str, auto_class: str, inputs_file: str, outputs_file: str, *adapter: str) -> None:
    """Run the checkpoint; called in the clean process."""
    import transformers

    auto = getattr(transformers, auto_class)
    if adapter:
        model = _adapted(auto, folder, *adapter)
    else:
        model, report = auto.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
        problems = [f"{name}: {sorted(map(str, report[name]))}" for name in LOADING_PROBLEMS if report.get(name)]
        if problems:
            sys.exit("the weights do not fit the model; " + "; ".join(problems))
    with inference_mode():
        outputs = model.eval()(**load_file(inputs_file))
    tensors = {name: value for name, value in outputs.items() if isinstance(value, Tensor)}
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, outputs_file)


def _adapted(auto: Any, folder: str, base: str, changes: str) -> Any:
    """The base model with the adapter, which contains the head where that of the base is missing or of another size."""
    from peft import PeftModel
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(base, trust_remote_code=True)
    for path, value in json.loads(changes).items():
        *parts, name = path.split(".")
        setattr(reduce(getattr, parts, config), name, value)
    model = auto.from_pretrained(base, config=config, trust_remote_code=True, ignore_mismatched_sizes=True)
    return PeftModel.from_pretrained(model, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
