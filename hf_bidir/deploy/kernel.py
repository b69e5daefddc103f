"""Loads the signed attention kernel of the Hub's `kernels` library, made by kernels/build.py."""

from pathlib import Path
from types import ModuleType

import torch

import hf_bidir
from hf_bidir.common.extras import extra

with extra("kernels"):
    import kernels


def load_kernel(source: str | Path) -> ModuleType:
    """The kernel of a folder, or of a repository on the Hub, of the version of this package.

    Args:
        source: the `Path` of kernels/signed-attention after `make kernel`, or the name of a repository on the Hub,
            whose code runs.

    Raises:
        FileNotFoundError: the folder holds no built kernel.
        ValueError: the kernel was made from another version of hf_bidir.
    """
    backend = None if torch.cuda.is_available() else "cpu"
    if isinstance(source, Path):
        if not (source / "build").is_dir():
            raise FileNotFoundError(f"{source} holds no built kernel; run: make kernel")
        kernel = kernels.get_local_kernel(source, backend=backend)
    else:
        kernel = kernels.get_kernel(source, version=1, backend=backend, trust_remote_code=[source])
    version = getattr(kernel, "VERSION", None)
    if version != hf_bidir.__version__:
        raise ValueError(
            f"{source} was made from hf_bidir {version}, and hf_bidir {hf_bidir.__version__} is installed; run make "
            "kernel, or install that version."
        )
    return kernel
