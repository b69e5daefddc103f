"""Attention activations: functions that turn scores into coefficients.

Every activation has the signature `fn(scores, keep=None, dim=-1)`; `tanhmax` and `balanced` also take `negative_mass`.
`register_attn_activation` adds a user's function under a name, which a config can then use.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from difflib import get_close_matches
from numbers import Real
from typing import Any

import torch
from torch import Tensor

# By attention layer, or its view of the config, an object of an installed room that changes its attention in calls of
# this thread or task, but not in compiled graphs: `attend(proceed, call)` in signed_layers.py, `operators(layer, plan)`
# in outside_attention.py, `softmax` and `edited(coefficients)` in layers with their own scores.
attention_changes: ContextVar[Mapping[Any, Any]] = ContextVar("attention_changes", default={})  # noqa: B039  only read


def tanhmax(scores: Tensor, keep: Tensor | None = None, dim: int = -1, negative_mass: float | Tensor = 1.0) -> Tensor:
    """Signed softmax, `(e^s - λ e^-s) / sum(e^s + λ e^-s)`: TanhMax at `λ = 1`, softmax at `λ = 0`.

    Args:
        scores: any shape, finite; fp16 and bf16 are computed in fp32.
        keep: boolean, broadcastable to `scores`; True = attend. A row without kept keys gives zeros.
        dim: the dimension of the keys.
        negative_mass: `λ` in [0, 1], a number or a tensor broadcastable to `scores` (`[heads, 1, 1]`: one per head).
            A tensor entry of exactly 0 is softmax and receives no gradient.

    Returns:
        Coefficients of the shape and dtype of `scores`, in [-1, 1], whose absolute values sum to at most 1.

    Raises:
        ValueError: a negative mass outside [0, 1].

    Source: Huang, Yang, Wang 2024 (doi 10.6339/24-JDS1134) for `λ = 1`.
    """
    negative_mass = _mass_for(scores, negative_mass)
    if isinstance(negative_mass, Tensor):
        shift = score_shift(negative_mass.clamp_min(torch.finfo(torch.float32).tiny))
        coefficients = _shifted_tanhmax(scores, keep, dim, shift)
        if torch.compiler.is_compiling() or bool((negative_mass == 0).any()):
            coefficients = torch.where(negative_mass == 0, softmax(scores, keep, dim), coefficients)
        return coefficients
    if negative_mass == 0:
        return softmax(scores, keep, dim)
    return _shifted_tanhmax(scores, keep, dim, score_shift(negative_mass))


def balanced(scores: Tensor, keep: Tensor | None = None, dim: int = -1, negative_mass: float | Tensor = 1.0) -> Tensor:
    """Balanced attention, `(1 - λ/2) softmax(s) - λ/2 softmax(-s)`: softmax at `λ = 0`.

    Softmax is the sum of a signed part, `½ (softmax(s) - softmax(-s))`, and an even part that is never negative,
    `½ (softmax(s) + softmax(-s))`. This is the signed part plus `1 - λ` of the even part; a row sums to `1 - λ`. Like
    softmax, and unlike TanhMax, it does not change when a constant is added to all scores of a query.

    Arguments, result and errors as in `tanhmax`. At `λ = 1`, a row with one kept key gives 0.
    """
    half = _mass_for(scores, negative_mass) / 2
    x = upcast(scores)
    return ((1 - half) * softmax(x, keep, dim) - half * softmax(-x, keep, dim)).to(scores.dtype)


def softmax(scores: Tensor, keep: Tensor | None = None, dim: int = -1) -> Tensor:
    """Softmax over the kept keys; same shapes as `tanhmax`. A row without kept keys gives zeros, not NaN."""
    if keep is None:
        return upcast(scores).softmax(dim).to(scores.dtype)
    # A row without kept keys is computed unmasked, which avoids NaN, and zeroed afterwards.
    dropped = ~keep & keep.any(dim, keepdim=True)
    return upcast(scores).masked_fill(dropped, -math.inf).softmax(dim).masked_fill(~keep, 0).to(scores.dtype)


def tanh(scores: Tensor, keep: Tensor | None = None, dim: int = -1) -> Tensor:
    """Element-wise `tanh(scores)`, not normalised over the keys (`dim` is unused); dropped keys get 0."""
    coefficients = scores.tanh()
    return coefficients if keep is None else coefficients.masked_fill(~keep, 0)


def score_shift(negative_mass: Any) -> Any:
    """The constant `-log(λ) / 2`, `λ > 0`; added to every score, it turns TanhMax into signed softmax with mass `λ`.

    `e^s - λ e^-s` is `2 sqrt(λ) sinh(s - log(λ) / 2)`, and the normaliser has the same form with `cosh`.
    """
    if isinstance(negative_mass, Tensor):
        return -0.5 * negative_mass.log()
    return -0.5 * math.log(negative_mass)


def checked_negative_mass(mass: Any) -> Any:
    """A number of any kind as a float, a tensor as it is; ValueError unless every entry lies in [0, 1].

    Tensors are not inspected while torch.compile traces, and may have a gradient.
    """
    if isinstance(mass, Tensor):
        valid = torch.compiler.is_compiling() or bool(((mass >= 0) & (mass <= 1)).all())
    else:
        valid = isinstance(mass, Real) and 0 <= mass <= 1  # type: ignore[operator]
    if not valid:
        raise ValueError(
            "a negative mass must lie in [0, 1] (0 is softmax, 1 is TanhMax), a list has one entry per layer, each a "
            f"number or one per head; got {mass!r} for attn_negative_mass of the config, or the argument negative_mass."
        )
    return mass if isinstance(mass, Tensor) else float(mass)


def as_masses(mass: Any, depth: int = 2) -> float | list:
    """A negative mass of numbers, nested lists, arrays or tensors as floats and lists; ValueError if it is invalid."""
    entries = mass.tolist() if hasattr(mass, "tolist") else mass  # of NumPy and torch
    if isinstance(entries, (list, tuple)) and entries and depth:  # torch 2.8 compiles no union
        return [checked_negative_mass(x) if isinstance(x, float) else as_masses(x, depth - 1) for x in entries]
    return checked_negative_mass(entries)


def _mass_for(scores: Tensor, negative_mass: float | Tensor) -> float | Tensor:
    """A checked negative mass; a tensor on the device and in the dtype in which the scores are computed."""
    checked = checked_negative_mass(negative_mass)
    return checked.to(scores.device, compute_dtype(scores.dtype)) if isinstance(checked, Tensor) else checked


def _shifted_tanhmax(scores: Tensor, keep: Tensor | None, dim: int, shift: float | Tensor) -> Tensor:
    """`sinh(s) / sum cosh(s)` at `s = scores + shift`, without overflow and without cancellation near 0.

    With `m = max|s|`, `sinh` and `cosh` are `e^(|s| - m) (1 ∓ e^(-2|s|))` up to one factor that cancels. `expm1` is
    exact where `e^s - e^-s` would subtract two close numbers. The sign is a constant ±1, never 0: `torch.abs` and
    `torch.sign` have gradient 0 at `s = 0`, where the true Jacobian is `1/N`.
    """
    shifted = upcast(scores) + shift
    if keep is not None:
        shifted = shifted.masked_fill(~keep, 0)
    sign = torch.where(shifted < 0, -1.0, 1.0).to(shifted.dtype)
    magnitude = sign * shifted
    weight = (magnitude - magnitude.detach().amax(dim, keepdim=True)).exp()
    if keep is not None:
        weight = weight.masked_fill(~keep, 0)
    decay = (-2 * magnitude).expm1()
    total = (weight * (2 + decay)).sum(dim, keepdim=True)
    if keep is not None:
        total = total.masked_fill(total == 0, 1)
    return (-sign * weight * decay / total).to(scores.dtype)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which attention is computed: fp32 for fp16 and bf16; fp32 and fp64 stay."""
    return torch.promote_types(dtype, torch.float32)


def upcast(x: Tensor) -> Tensor:
    """The tensor in its `compute_dtype`."""
    return x.to(compute_dtype(x.dtype))


_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "balanced": balanced,
    "softmax": softmax,
    "tanh": tanh,
    "tanhmax": tanhmax,
}
WITH_NEGATIVE_MASS = ("tanhmax", "balanced")  # the activations that are softmax at a negative mass of 0


def register_attn_activation(name: str, fn: Callable[..., Tensor]) -> None:
    """Make `fn(scores, keep=None, dim=-1) -> coefficients` available as `attn_activation=name` in every config.

    The function is not saved with a checkpoint: to load one that names it, install `hf_bidir` and register the function
    first. Code loaded with `trust_remote_code` has its own registry, with the built-in names only.

    Raises:
        ValueError: the name is taken by another function.
    """
    if _ACTIVATIONS.get(name, fn) is not fn:
        raise ValueError(
            f"attn_activation {name!r} is already registered as {_ACTIVATIONS[name]}; choose another name."
        )
    _ACTIVATIONS[name] = fn


def get_attn_activation(name: str) -> Callable[..., Tensor]:
    """The function registered under `name`; ValueError lists the known names and the closest one."""
    if name not in _ACTIVATIONS:
        known = ", ".join(sorted(_ACTIVATIONS))
        hint = did_you_mean(str(name), _ACTIVATIONS) or " hf_bidir.register_attn_activation adds another."
        raise ValueError(f'attn_activation="{name}" is not known; choose one of: {known}.{hint}')
    return _ACTIVATIONS[name]


def activated(scores: Tensor, keep: Tensor | None, activation: str, negative_mass: float | Tensor) -> Tensor:
    """Apply the activation with this name to scores `[batch, heads, queries, keys]`."""
    function = get_attn_activation(activation)
    if activation in WITH_NEGATIVE_MASS:
        return function(scores, keep, negative_mass=negative_mass)
    return function(scores, keep)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A closing sentence that names the closest known name, or an empty string if none is close."""
    close = get_close_matches(name, known, n=1)
    return f' Did you mean "{close[0]}"?' if close else ""
