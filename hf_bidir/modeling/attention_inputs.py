"""Checks and conversions of attention inputs: shapes, masks of every kind, negative masses per head."""

import os
from collections.abc import Callable, Hashable, Sequence
from importlib.util import find_spec
from shutil import which
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .activations import checked_negative_mass

Found = TypeVar("Found")
NegativeMass = float | Sequence[float] | Tensor

# Triton compiles its kernel launchers with the system's C compiler.
HAS_TRITON = find_spec("triton") is not None
HAS_COMPILER = any(which(name) for name in (os.environ.get("CC"), "gcc", "clang") if name)
_FOUND: Any = WeakTensorKeyDictionary()  # of masks: their version, and what was found
# Float mask entries of at most this drop a key: e^-50 is negligible in a softmax. Swin masks with -100.
MASKED = -50.0
HEAD_DIMS = (16, 256)  # smallest and largest head dimension of the fused kernels
FEW_ROWS = 64  # queries of all heads that share keys, up to which a kernel for few queries computes them in one block
# Triton's interpreter runs the kernels slowly without a GPU. Triton reads the variable when it is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def keep_and_bias(
    attention_mask: Tensor | None, position_bias: Tensor | None = None, omit_zero_bias: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """Split masks and biases into a boolean keep-mask and an additive bias; None for either if it has no effect.

    Args:
        attention_mask: boolean, integer, or float. Float entries of at most `MASKED` drop the key, the others are a
            bias. A large negative bias would not drop it: `e^-s` would give that key all of the weight.
        position_bias: an additive bias, which in some models also contains a mask.
        omit_zero_bias: return None for a bias that is 0 everywhere and has no gradient; ignored while compiling, where
            values are unknown.
    """
    if position_bias is None and attention_mask is not None:
        return remembered(attention_mask, omit_zero_bias, lambda: _split(attention_mask, None, omit_zero_bias))
    return _split(attention_mask, position_bias, omit_zero_bias)


def remembered(mask: Tensor, what: Hashable, find: Callable[[], Found]) -> Found:
    """`find()`, computed once for all layers that get the same mask, because inspecting a mask makes the CPU wait for
    the GPU.

    It is computed anew after a write that torch counts (not `mask.data[...] = `), and in every call where torch counts
    none or records operations: in graphs, in inference mode, and for a mask with a gradient.
    """
    if is_captured(mask) or torch.is_inference_mode_enabled() or mask.is_inference() or mask.requires_grad:
        return find()
    known: dict[Hashable, Found]
    version, known = _FOUND.get(mask, (None, {}))
    if version != mask._version:
        known = {}
        _FOUND[mask] = mask._version, known
    if what not in known:
        known[what] = find()
    return known[what]


def is_captured(x: Tensor) -> bool:
    """Whether operations are captured as a graph, which must not depend on the values of a tensor."""
    capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or capturing


def _split(
    attention_mask: Tensor | None, position_bias: Tensor | None, omit_zero_bias: bool
) -> tuple[Tensor | None, Tensor | None]:
    terms = [x for x in (attention_mask, position_bias) if x is not None and x.is_floating_point()]
    keep = None
    if attention_mask is not None and not attention_mask.is_floating_point():
        keep = attention_mask.bool()
    if not terms:
        return keep, None
    bias = sum(terms[1:], start=terms[0])
    dropped = bias <= MASKED
    bias = bias.masked_fill(dropped, 0)
    keep = ~dropped if keep is None else keep & ~dropped
    if omit_zero_bias and not bias.requires_grad and not torch.compiler.is_compiling() and not bias.any():
        return keep, None
    return keep, bias


def same_batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value expanded to one batch size; a batch of 1 is broadcast."""
    batch = max(query.shape[0], key.shape[0])
    query, key, value = (x if x.shape[0] == batch else x.expand(batch, -1, -1, -1) for x in (query, key, value))
    return query, key, value


def per_head(negative_mass: NegativeMass, query: Tensor) -> float | Tensor:
    """The negative mass as a float, or as a tensor `[heads, 1, 1]` if the heads differ or it was given as a tensor."""
    heads = query.shape[1]
    if isinstance(negative_mass, float):
        return checked_negative_mass(negative_mass)
    if isinstance(negative_mass, Tensor):
        _check_count(negative_mass.numel(), heads)
        return checked_negative_mass(negative_mass).reshape(-1, 1, 1)
    negative_mass = negative_mass.tolist() if hasattr(negative_mass, "tolist") else negative_mass  # of NumPy
    if isinstance(negative_mass, str) or not hasattr(negative_mass, "__len__"):
        return checked_negative_mass(negative_mass)  # one number of another kind, or an error
    masses = [checked_negative_mass(value) for value in negative_mass]
    _check_count(len(masses), heads)
    if len(set(masses)) == 1:
        return masses[0]
    return torch.tensor(masses, dtype=torch.float32, device=query.device).view(-1, 1, 1)


def _check_count(count: int, heads: int) -> None:
    if count not in (1, heads):
        raise ValueError(f"negative_mass needs one value, or one for each of the {heads} heads, got {count}.")


def check_shapes(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None) -> None:
    """Raise ValueError with all shapes unless they fit."""
    of_query, of_key, of_value = query.shape, key.shape, value.shape
    if len(of_query) != 4 or len(of_key) != 4 or of_value[:3] != of_key[:3]:
        fault = "expected [batch, heads, length, head_dim] with equal key and value lengths"
    elif of_query[0] != of_key[0] or of_query[3] != of_key[3]:
        fault = "query and key must agree in batch and head_dim"
    elif of_key[1] == 0 or of_query[1] % of_key[1]:
        fault = "the number of key heads must divide the number of query heads"
    elif query.numel() == 0 or value.numel() == 0:
        fault = "no size may be 0"
    else:
        if keep is not None:
            _check_keep(keep, (*of_query[:3], of_key[2]))
        return
    shapes = f"query {tuple(of_query)}, key {tuple(of_key)}, value {tuple(of_value)}"
    raise ValueError(f"{fault}, got {shapes}.")


def _check_keep(keep: Tensor, full: tuple[int, ...]) -> None:
    if keep.dtype != torch.bool:
        raise ValueError(f"keep must be boolean (True = attend), got {keep.dtype}; convert numbers with mask == 1.")
    given = keep.shape
    if (
        len(given) != 4
        or given[3] != full[3]
        or not (given[0] in (1, full[0]) and given[1] in (1, full[1]) and given[2] in (1, full[2]))
    ):
        raise ValueError(f"keep must broadcast to [batch, heads, queries, keys] = {full}, got {tuple(given)}.")


def check_dropout(dropout: float) -> None:
    """Raise ValueError unless `dropout` is a probability below 1."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout}.")


def fused_obstacle() -> str | None:
    """The reason why this machine cannot run the Triton kernels; None if it can."""
    if not HAS_TRITON:
        return "Triton is not installed (pip install triton)"
    if INTERPRETED:
        return None
    if not HAS_COMPILER:
        return "Triton needs a C compiler (install gcc)"
    return None if torch.cuda.is_available() else "torch sees no GPU"
