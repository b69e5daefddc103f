"""`hf-bidir doctor`: what this machine has, and which attention implementation it takes."""

from hf_bidir.cli.app import app

PACKAGES = (
    *("torch", "transformers", "triton", "datasets", "accelerate", "evaluate", "huggingface-hub", "safetensors"),
    *("tokenizers", "captum", "scipy", "scikit-learn", "matplotlib", "timm", "torchvision", "gradio", "peft"),
)
SHAPES = {  # example calls, `[queries, keys, dropout]`
    "training with dropout, 512 tokens": (512, 512, 0.1),
    "inference, 512 tokens": (512, 512, 0.0),
    "decoding, one token over 512": (1, 512, 0.0),
}


@app.command()
def doctor() -> None:
    """Print versions, devices, the attention path that "auto" takes here and why, and the kernel's self-check.

    Paste the output into a bug report; it has no paths and no tokens.
    """
    import typer

    for title, rows in (("Versions", versions()), ("Devices", devices()), ("Attention", attention_paths())):
        typer.echo(f"{title}:")
        width = max(map(len, rows))
        for name, text in rows.items():
            typer.echo(f"  {name:<{width}}  {text}")


def versions() -> dict[str, str]:
    """The versions of Python, this package and what it works with."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from hf_bidir import __version__

    found = {"python": platform.python_version(), "hf-bidir": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def devices() -> dict[str, str]:
    """CPU cores and threads, and the accelerators that torch sees."""
    import os

    import torch

    rows = {"cpu": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads in torch"}
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
    """The implementation that "auto" stands for in example calls, and whether the fused kernel can be used."""
    import torch

    from hf_bidir.modeling.attention import choose_implementation
    from hf_bidir.modeling.attention_call import AttentionCall

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = {}
    for dtype in (torch.float32, torch.bfloat16):
        for name, (queries, keys, dropout) in SHAPES.items():
            query, key = (torch.empty(1, 4, length, 64, dtype=dtype, device=device) for length in (queries, keys))
            choice, reason = choose_implementation(query, key, key, AttentionCall(scaling=0.125, dropout=dropout))
            rows[f"{str(dtype).removeprefix('torch.')}, {name}"] = f"{choice} ({reason})"
    return rows | {"fused kernel": kernel_state()}


def kernel_state() -> str:
    """Whether the Triton kernel can run here, and if so, whether it matches the eager path."""
    import torch

    from hf_bidir.modeling.attention_inputs import HAS_COMPILER, HAS_TRITON
    from hf_bidir.modeling.fused_check import difference_from_eager

    missing = [
        *([] if torch.cuda.is_available() and torch.version.hip is None else ["an NVIDIA GPU"]),
        *([] if HAS_TRITON else ["Triton"]),
        *([] if HAS_COMPILER else ["a C compiler"]),
    ]
    if missing:
        return f"not used: it needs {', '.join(missing)}"
    from hf_bidir.modeling.fused_attention import fused_attention

    found = difference_from_eager(fused_attention, torch.device("cuda"), torch.bfloat16, 64, 64)
    return f"not used: {found}" if found else "matches the eager path (bfloat16, head dimension 64)"
