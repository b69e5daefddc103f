"""What attention takes: shapes that fit, masks of every kind as one, a negative mass per head."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from shutil import which

import torch
from torch import Tensor

from .activations import check_negative_mass

NegativeMass = float | Sequence[float] | Tensor

# Triton builds what starts its kernels with a C compiler of the machine.
HAS_TRITON = find_spec("triton") is not None
HAS_COMPILER = any(which(name) for name in (os.environ.get("CC"), "gcc", "clang") if name)
# A float mask drops what is at most this: e^-50 is 0 beside any other weight of a softmax. Swin masks with -100.
MASKED = -50.0
HEAD_DIMS = (16, 256)  # that the kernels take
# The Triton kernels run without a GPU, slowly; Triton looks at the variable when it is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def keep_and_bias(
    attention_mask: Tensor | None, position_bias: Tensor | None = None, looked_at: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """Which keys are kept, and what is added to the scores of those; None where all are, or nothing is.

    Args:
        attention_mask: boolean, integers, or float: what is at most `MASKED` is dropped, the rest is a bias. To add
            what is dropped would be wrong here: `e^-s` would give that key all of the weight.
        position_bias: a bias, in which some models have a mask as well.
        looked_at: return no bias where all of it is 0. A compiled graph cannot look.
    """
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
    return keep, None if looked_at and not torch.compiler.is_compiling() and not bias.any() else bias


def same_batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of one batch size: a batch of 1 stands for as many as the others have."""
    batch = max(query.shape[0], key.shape[0])
    return tuple(x if x.shape[0] == batch else x.expand(batch, -1, -1, -1) for x in (query, key, value))


def per_head(negative_mass: NegativeMass, query: Tensor) -> float | Tensor:
    """A float, or a tensor `[heads, 1, 1]` where the heads differ or the value is learned."""
    heads = query.shape[1]
    if isinstance(negative_mass, (int, float)):  # torch 2.8 compiles no union here
        check_negative_mass(negative_mass)
        return float(negative_mass)
    if isinstance(negative_mass, str):
        raise ValueError(f"negative_mass must be a number in [0, 1] or one per head, got {negative_mass!r}.")
    count = negative_mass.numel() if isinstance(negative_mass, Tensor) else len(negative_mass)
    if count not in (1, heads):
        raise ValueError(f"negative_mass needs one value, or one for each of the {heads} heads, got {count}.")
    if isinstance(negative_mass, Tensor):
        check_negative_mass(negative_mass)
        return negative_mass.reshape(-1, 1, 1)
    for value in negative_mass:
        check_negative_mass(value)
    if len(set(negative_mass)) == 1:
        return float(negative_mass[0])
    return torch.tensor(negative_mass, dtype=torch.float32, device=query.device).view(-1, 1, 1)


def check_shapes(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None) -> None:
    """Raise ValueError that prints the shapes where they do not fit."""
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if query.dim() != 4 or key.dim() != 4 or value.shape[:3] != key.shape[:3]:
        raise ValueError(f"expected [batch, heads, length, head_dim] with equal key and value lengths, got {shapes}.")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ValueError(f"query and key must agree in batch and head_dim, got {shapes}.")
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ValueError(f"the heads of the key must be as many as those of the query, or divide them; got {shapes}.")
    if query.numel() == 0 or value.numel() == 0:
        raise ValueError(f"no size may be 0, got {shapes}.")
    if keep is None:
        return
    if keep.dtype != torch.bool:
        raise ValueError(f"keep must be boolean (True = attend), got {keep.dtype}; mask == 1 makes one of numbers.")
    full = (*query.shape[:3], key.shape[2])
    if (
        keep.dim() != 4
        or keep.shape[3] != full[3]
        or any(k not in (1, n) for k, n in zip(keep.shape, full, strict=True))
    ):
        raise ValueError(f"keep must broadcast to [batch, heads, queries, keys] = {full}, got {tuple(keep.shape)}.")


def check_dropout(dropout: float) -> None:
    """Raise ValueError unless `dropout` is a probability below 1."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout}.")


def fused_obstacle() -> str | None:
    """What keeps this machine from running the Triton kernels; None where nothing does."""
    if not HAS_TRITON:
        return "Triton is not installed (pip install triton)"
    if INTERPRETED:
        return None
    if not HAS_COMPILER:
        return "Triton needs a C compiler (install gcc)"
    return None if torch.cuda.is_available() else "torch sees no GPU"
