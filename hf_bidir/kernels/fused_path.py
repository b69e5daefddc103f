"""The implementation "fused" of `bidir_attention`: what it needs, and its entry in the table of modeling/attention.py.

Imports no Triton: the kernels are imported by the first call that uses them.
"""

import os
from importlib.util import find_spec
from shutil import which
from types import ModuleType

import torch
from torch import Tensor

from hf_bidir.modeling.attention_call import AttentionCall

HAS_TRITON = find_spec("triton") is not None
# Triton compiles its kernel launchers with the system's C compiler.
HAS_COMPILER = any(which(name) for name in (os.environ.get("CC"), "gcc", "clang") if name)
# Triton's interpreter runs the kernels slowly without a GPU. Triton reads the variable when it is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")
HEAD_DIMS = (16, 256)  # smallest and largest head dimension
FEW_ROWS = 64  # queries of all heads that share keys, up to which a kernel for few queries computes them in one block


def register(attention: ModuleType) -> None:
    """Add "fused" to the implementations of this `attention.py`."""
    attention.IMPLEMENTATIONS["fused"] = attention.Implementation(
        _attend, terms=("bias", "softcap"), softmax_heads=True, preferred=_preferred
    )


def fused_obstacle() -> str | None:
    """The reason why this machine cannot run the Triton kernels; None if it can."""
    if not HAS_TRITON:
        return "Triton is not installed (pip install triton)"
    if INTERPRETED:
        return None
    if not HAS_COMPILER:
        return "Triton needs a C compiler (install gcc)"
    return None if torch.cuda.is_available() else "torch sees no GPU"


def _attend(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall) -> Tensor:
    from hf_bidir.kernels.fused_attention import attend_fused

    return attend_fused(query, key, value, keep, call, captured=torch.compiler.is_compiling())


def _preferred(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall) -> bool:
    """Whether the kernels compute a call on this GPU, in half precision, and match the formula there."""
    if query.device.type != "cuda" or call.activation not in ("tanhmax", "softmax") or call.sinks is not None:
        return False
    from hf_bidir.kernels.fused_check import fused_agrees

    return fused_agrees(query, key, value, keep, call)
