"""`hf-bidir doctor`: versions, devices and the attention implementation of this machine."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version

import typer

from hf_bidir import __version__
from hf_bidir.cli.app import app

PACKAGES = (
    *("torch", "transformers", "triton", "datasets", "accelerate", "evaluate", "huggingface-hub", "safetensors"),
    *("tokenizers", "captum", "scipy", "scikit-learn", "matplotlib", "timm", "torchvision", "gradio", "peft"),
)
SHAPES = {  # example calls: queries, keys, dropout
    "training with dropout, 512 tokens": (512, 512, 0.1),
    "inference, 512 tokens": (512, 512, 0.0),
    "decoding, one token over 512": (1, 512, 0.0),
}


@app.command()
def doctor() -> None:
    """Print versions, devices and the attention implementation.

    Shows the implementation that "auto" chooses for example calls, with the reason, and the result of the fused
    kernel's self-check. The output has no paths and no access tokens: paste it into a bug report.

    \b
    hf-bidir doctor
    """
    for title, rows in (("Versions", versions()), ("Devices", devices()), ("Attention", attention_paths())):
        typer.echo(f"{title}:")
        width = max(map(len, rows))
        for name, text in rows.items():
            typer.echo(f"  {name:<{width}}  {text}")


def versions() -> dict[str, str]:
    """The versions of Python, hf-bidir and the packages it uses."""
    found = {"python": platform.python_version(), "hf-bidir": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def devices() -> dict[str, str]:
    """CPU cores and threads, and the accelerators that torch finds."""
    import torch

    rows = {"cpu": f"{os.cpu_count()} cores, threads of torch: {torch.get_num_threads()}"}
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        capability = f"compute capability {found.major}.{found.minor}"
        rows[f"cuda:{index}"] = f"{found.name}, {found.total_memory / 2**30:.0f} GiB, {capability}"
    if not torch.cuda.is_available():
        rows["cuda"] = "none"
    if torch.backends.mps.is_available():
        rows["mps"] = "available"
    return rows


def attention_paths() -> dict[str, str]:
    """The implementation that "auto" chooses for each example call, and the state of the fused kernel."""
    import torch

    from hf_bidir.modeling.attention import choose_implementation
    from hf_bidir.modeling.attention_call import AttentionCall

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = {}
    for dtype in (torch.float32, torch.bfloat16):
        for name, (queries, keys, dropout) in SHAPES.items():
            query, key = (torch.empty(1, 4, length, 64, dtype=dtype, device=device) for length in (queries, keys))
            choice, reason = choose_implementation(query, key, key, AttentionCall(scaling=0.125, dropout=dropout))
            rows[f"{str(dtype).removeprefix('torch.')}, {name}"] = f"{choice} ({reason})" if reason else choice
    return rows | {"fused kernel": kernel_state()}


def kernel_state() -> str:
    """Whether the Triton kernel can run here and matches the eager path."""
    import torch

    from hf_bidir.kernels.fused_check import Kind, difference_from_eager
    from hf_bidir.kernels.fused_path import HAS_COMPILER, HAS_TRITON

    nvidia = torch.cuda.is_available() and torch.version.hip is None
    capable = nvidia and torch.cuda.get_device_properties(0).major >= 8
    needed = {"an NVIDIA GPU of compute capability 8 or higher": capable, "Triton": HAS_TRITON}
    missing = [name for name, present in (needed | {"a C compiler": HAS_COMPILER}).items() if not present]
    if missing:
        return f"not used: missing {', '.join(missing)}"
    from hf_bidir.kernels.fused_attention import fused_attention

    found = difference_from_eager(fused_attention, Kind(torch.device("cuda"), torch.bfloat16, 64, 64))
    return f"not used: {without_paths(found)}" if found else "matches the eager path (bfloat16, head dimension 64)"


def without_paths(message: str) -> str:
    """An error message with every absolute path replaced by `<path>`."""
    return re.sub(r"(?<![\w<])(?:[A-Za-z]:\\|[/~])[^\s'\":,;()]+", "<path>", message)
