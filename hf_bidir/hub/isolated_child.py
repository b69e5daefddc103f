"""What `isolated_forward` runs by path: python -I isolated_child.py FOLDER CLASS INPUTS OUTPUTS [BASE CHANGES].

BASE is the folder of the base model if FOLDER is an adapter, and CHANGES the fields of its config, in JSON.
"""

import json
import sys
from functools import reduce
from typing import Any

# an import of the package, even an installed one, now raises ImportError
sys.modules["hf_bidir"] = None  # type: ignore[assignment]

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

LOADING_PROBLEMS = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")


def loaded(auto: Any, folder: str) -> torch.nn.Module:
    model, report = auto.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    problems = [f"{name}: {sorted(map(str, report[name]))}" for name in LOADING_PROBLEMS if report.get(name)]
    if problems:
        sys.exit("the weights do not fit the model; " + "; ".join(problems))
    return model


def adapted(auto: Any, folder: str, base: str, changes: str) -> torch.nn.Module:
    """The base model with the adapter, which contains the head where that of the base is missing or of another size."""
    from peft import PeftModel

    config = transformers.AutoConfig.from_pretrained(base, trust_remote_code=True)
    for path, value in json.loads(changes).items():
        *parts, name = path.split(".")
        setattr(reduce(getattr, parts, config), name, value)
    model = auto.from_pretrained(base, config=config, trust_remote_code=True, ignore_mismatched_sizes=True)
    return PeftModel.from_pretrained(model, folder)


def main(folder: str, auto_class: str, inputs_file: str, outputs_file: str, *adapter: str) -> None:
    auto = getattr(transformers, auto_class)
    model = adapted(auto, folder, *adapter) if adapter else loaded(auto, folder)
    with torch.inference_mode():
        outputs = model.eval()(**load_file(inputs_file))
    tensors = {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, outputs_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
