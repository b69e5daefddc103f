"""The implementations "fused" and "chunked", which this file enters in modeling/attention.py.

Imports no Triton: its kernels are imported by the first call that uses them.
"""

import os
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from hf_bidir.modeling.attention import IMPLEMENTATIONS, SOFTMAX_HEADS, Implementation
from hf_bidir.modeling.attention_call import AttentionCall

from .chunked_attention import chunked_attention

HAS_TRITON = find_spec("triton") is not None
# Triton's interpreter runs the kernels slowly without a GPU. Triton reads the variable when it is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = (16, 256)  # smallest and largest head dimension
FEW_ROWS = 64  # queries of all heads that share keys, up to which a kernel for few queries computes them in one block


def fused_obstacle() -> str | None:
    """The reason why this machine cannot run the Triton kernels; None if it can."""
    if not HAS_TRITON:
        return "Triton is not installed (pip install triton)"
    return None if INTERPRETED or torch.cuda.is_available() else "torch sees no GPU"


def unsupported(device: torch.device, dtype: torch.dtype, *sizes: int) -> str | None:
    """The requirement that these tensors do not meet, or None."""
    if dtype not in DTYPES:
        return "fp16, bf16 or fp32"
    if min(sizes) < HEAD_DIMS[0] or max(sizes) > HEAD_DIMS[1]:
        return "head dimensions from {} to {}".format(*HEAD_DIMS)
    if device.type == "cpu" and not INTERPRETED:
        return "a GPU"
    return "a GPU of compute capability 8 or more" if device.type == "cuda" and _capability(device) < 8 else None


@lru_cache
def _capability(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).major


def _attend_fused(*inputs: Any) -> Tensor:
    from .fused_attention import fused_attention

    return fused_attention(*inputs)


def _prefers_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None,
    call: AttentionCall,
) -> str | None:
    """The reason for a call in half precision that the kernels compute on this GPU, where they match the formula."""
    if query.device.type != "cuda" or call.activation != "tanhmax" or call.sinks is not None:
        return None
    from .fused_check import fused_agrees

    one_dtype = query.dtype == key.dtype == value.dtype
    return f"{query.dtype} on cuda" if one_dtype and fused_agrees(query, value) else None


def _prefers_chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None,
    call: AttentionCall,
) -> str | None:
    """The reason for a call of TanhMax on a CPU, or with dropout, which SDPA would apply to half of a coefficient."""
    device = query.device.type
    if call.activation != "tanhmax" or query.shape[2] == 1 or torch.compiler.is_compiling():
        return None
    if IMPLEMENTATIONS["chunked"].obstacle(call) or (device == "cuda" and call.dropout == 0):
        return None
    return f"linear memory{' with dropout' if call.dropout else ''} on {device}"


IMPLEMENTATIONS["fused"] = Implementation(
    _attend_fused, computes=("bias", "softcap", "dropout", SOFTMAX_HEADS), preferred=_prefers_fused
)
IMPLEMENTATIONS["chunked"] = Implementation(chunked_attention, computes=("dropout",), preferred=_prefers_chunked)
