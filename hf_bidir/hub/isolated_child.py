"""What `isolated_forward` runs by path: python -I isolated_child.py FOLDER CLASS INPUTS OUTPUTS."""

import sys

# an import of the package, even an installed one, now raises ImportError
sys.modules["hf_bidir"] = None  # type: ignore[assignment]

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

LOADING_PROBLEMS = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")


def main(folder: str, auto_class: str, inputs_file: str, outputs_file: str) -> None:
    model, report = getattr(transformers, auto_class).from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True
    )
    problems = [f"{name}: {sorted(map(str, report[name]))}" for name in LOADING_PROBLEMS if report.get(name)]
    if problems:
        sys.exit("the weights do not fit the model; " + "; ".join(problems))
    with torch.inference_mode():
        outputs = model.eval()(**load_file(inputs_file))
    tensors = {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, outputs_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
