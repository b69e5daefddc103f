"""Attention with a free choice of activation: query, key, value -> context, one function per implementation."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.utils import logging

from .activations import get_attn_activation, score_shift, tanhmax
from .attention_inputs import HAS_COMPILER, HAS_TRITON, HEAD_DIMS, NegativeMass, check_dropout, check_shapes, per_head
from .chunked_attention import chunked_tanhmax_attention
from .fused_check import fused_agrees

logger = logging.get_logger(__name__)

IMPLEMENTATIONS = ("auto", "eager", "chunked", "compiled", "lift", "fused")


def bidir_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None = None,
    *,
    activation: str = "tanhmax",
    negative_mass: NegativeMass = 1.0,
    scaling: float | None = None,
    dropout: float = 0.0,
    implementation: str = "auto",
    terms: "ScoreTerms | None" = None,
) -> tuple[Tensor, Tensor | None]:
    """Multi-head attention whose coefficients may be negative.

    Args:
        query: `[batch, heads, queries, head_dim]`.
        key, value: `[batch, heads, keys, head_dim]`; the values may have another last size, which the context takes.
        keep: boolean, `[batch or 1, heads or 1, queries or 1, keys]`, True = attend; None = attend everywhere.
        activation: a built-in or registered name (`activations.py`).
        negative_mass: `λ` of TanhMax in [0, 1], one number or one per head (a sequence or a tensor of `heads`
            entries); the other activations do not have one.
        scaling: factor on the scores, by default `head_dim ** -0.5`.
        dropout: probability in [0, 1) of dropping a coefficient; give 0 outside training.
        implementation:
            "eager"     materialises and returns the coefficients; the only one for registered activations;
            "chunked"   piece by piece with its own backward (`chunked_attention.py`), O(length) memory;
            "lift"      softmax attention over the keys `[K; -K]` and values `[V; -V]` on torch's SDPA, O(length)
                        memory where one of its fused kernels takes the mask; refuses dropout, which would act on
                        the two halves separately, and loses digits where all scores are below 1e-3;
            "compiled"  torch.compile of the eager path, where a compiler exists;
            "fused"     one Triton kernel (`fused_attention.py`), O(length) memory: fp16, bf16 and fp32 on a GPU, head
                        dimensions 16 to 256;
            "auto"      chosen by activation, device, dtype and dropout, not by length: on a GPU "fused" in half
                        precision, where it can be had, else "lift" where there is no dropout; otherwise, and on a
                        CPU, "chunked". Logs its choice once.
        terms: what else is done with the scores; only "eager" computes it, and "auto" takes that then.

    Returns:
        The context `[batch, heads, queries, head_dim]`, and the coefficients `[batch, heads, queries, keys]` (after
        dropout) from "eager", else None. A query with nothing to attend to gets a context of zeros.

    Raises:
        ValueError: shapes that do not fit, a mask that is not boolean, an unknown name, an impossible combination.
    """
    check_shapes(query, key, value, keep)
    check_dropout(dropout)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    activation, negative_mass = resolved(activation, negative_mass, query)
    if terms and implementation not in ("auto", "eager"):
        raise ValueError(f'implementation="{implementation}" has no {terms}; use "eager", or "auto".')
    if implementation == "auto":
        implementation = "eager" if terms else _choose(query, key, value, activation, negative_mass, dropout)
    if implementation == "eager":
        return eager_attention(query, key, value, keep, activation, negative_mass, scaling, dropout, terms)
    if implementation == "compiled":
        compiled = _compiled_eager()
        return compiled(query, key, value, keep, activation, negative_mass, scaling, dropout)[0], None
    _check_implementation(implementation, activation, negative_mass, dropout)
    if activation == "softmax" and implementation != "fused":
        return softmax_attention(query, key, value, keep, scaling, dropout), None
    shift = head_shift(negative_mass, query)
    if implementation == "fused":
        from .fused_attention import fused_attention

        signed = activation == "tanhmax"
        return fused_attention(
            query, key, value, keep, signed=signed, shift=shift, scaling=scaling, dropout=dropout
        ), None
    if implementation == "lift":
        return lifted_attention(query, key, value, keep, shift, scaling), None
    return chunked_tanhmax_attention(query, key, value, keep, shift=shift, scaling=scaling, dropout=dropout), None


@dataclass(frozen=True)
class ScoreTerms:
    """What some models do with scores beside scaling them; False where there is nothing.

    Args:
        bias: added to the scores, broadcastable to `[batch, heads, queries, keys]`.
        softcap: before that, scores become `softcap * tanh(scores / softcap)`.
        sinks: `[heads]`, the score of a key that has no value and takes part in the normaliser alone.
    """

    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def __bool__(self) -> bool:
        return not (self.bias is None and self.softcap is None and self.sinks is None)

    def __str__(self) -> str:
        return ", ".join(name for name in ("bias", "softcap", "sinks") if getattr(self, name) is not None)

    def applied(self, scores: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Scores and keep-mask; with sinks there is one key more, the last."""
        if self.softcap is not None:
            scores = (scores / self.softcap).tanh() * self.softcap
        if self.bias is not None:
            scores = scores + self.bias
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1).to(scores)], -1)
            keep = None if keep is None else F.pad(keep, (0, 1), value=True)
        return scores, keep


def eager_attention(
    query, key, value, keep, activation, negative_mass, scaling, dropout, terms: ScoreTerms | None = None
) -> tuple[Tensor, Tensor]:
    """The plain path: scores, coefficients, dropout, context; arguments as in `bidir_attention`."""
    scores = query @ key.transpose(-1, -2) * scaling
    if terms:
        scores, keep = terms.applied(scores, keep)
    coefficients = activated(scores, keep, activation, negative_mass)[..., : key.shape[2]]
    coefficients = F.dropout(coefficients, dropout)
    return coefficients.to(value.dtype) @ value, coefficients


def activated(scores: Tensor, keep: Tensor | None, activation: str, negative_mass: float | Tensor) -> Tensor:
    """The coefficients of scores, `[batch, heads, queries, keys]`, by the name of an activation."""
    if activation == "tanhmax":
        return tanhmax(scores, keep, negative_mass=negative_mass)
    return get_attn_activation(activation)(scores, keep)


def softmax_attention(query, key, value, keep, scaling, dropout=0.0) -> Tensor:
    """torch's SDPA, with zeros instead of NaN for a query that may attend to nothing."""
    context = F.scaled_dot_product_attention(query, key, value, keep, dropout, scale=scaling)
    return context if keep is None else context.masked_fill(~keep.any(-1, keepdim=True), 0)


def lifted_attention(query, key, value, keep, shift, scaling) -> Tensor:
    """TanhMax as softmax over twice the keys: `[K; -K]`, `[V; -V]`, the mask repeated (DESIGN: bipolar lift).

    With a `shift` (`[heads, 1, 1]`) the scores of the two halves get `+shift` and `-shift`.
    """
    keys, values = torch.cat([key, -key], 2), torch.cat([value, -value], 2)
    mask = None if keep is None else torch.cat([keep, keep], -1)
    if shift is not None:
        mask = _lifted_bias(shift, mask, key.shape[2]).to(query.dtype)
    context = F.scaled_dot_product_attention(query, keys, values, mask, scale=scaling)
    return context if keep is None else context.masked_fill(~keep.any(-1, keepdim=True), 0)


def _lifted_bias(shift: Tensor, mask: Tensor | None, length: int) -> Tensor:
    """`[batch or 1, heads, queries or 1, 2 * length]`: +shift, then -shift, and -inf where the mask drops a key."""
    bias = torch.cat([shift.expand(-1, 1, length), -shift.expand(-1, 1, length)], -1).unsqueeze(0)
    if mask is None:
        return bias
    # A query without any key keeps its finite scores, so that no NaN arises; its context is zeroed afterwards.
    return bias.masked_fill(~mask & mask.any(-1, keepdim=True), -torch.inf)


def _choose(query, key, value, activation: str, negative_mass: float | Tensor, dropout: float) -> str:
    """The implementation that "auto" stands for; `benchmarks/attention.py` compares them.

    Under torch.compile on a CPU it is the eager formula, which the compiler fuses.
    """
    device = query.device.type
    if activation == "softmax":
        return "lift"  # without a negative half: torch's SDPA itself
    fused = activation == "tanhmax" and _fused_takes(query, key, value)
    if torch.compiler.is_compiling():
        return "fused" if fused else "eager"
    if activation != "tanhmax":
        choice, reason = "eager", f"{activation} has no other path"
    elif fused:
        choice, reason = "fused", f"{query.dtype} on {device}"
    elif _has_zero(negative_mass):
        choice, reason = "eager", "softmax heads and signed heads mix in one layer"
    elif device == "cuda" and dropout == 0:
        choice, reason = "lift", "torch's fused kernels compute it"
    else:
        choice, reason = "chunked", f"dropout {dropout} on {device}"
    _log_choice(choice, reason)
    return choice


def _fused_takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether "auto" may use the Triton kernel: half precision on an NVIDIA GPU of compute capability 8 or more, on
    which it agrees with the plain path."""
    return (
        HAS_TRITON
        and HAS_COMPILER
        and query.device.type == "cuda"
        and torch.version.hip is None
        and query.dtype == key.dtype == value.dtype in (torch.float16, torch.bfloat16)
        and all(HEAD_DIMS[0] <= x.shape[-1] <= HEAD_DIMS[1] for x in (query, value))
        and torch.cuda.get_device_properties(query.device).major >= 8
        and fused_agrees(query.device, query.dtype, query.shape[-1], value.shape[-1])
    )


@lru_cache
def _log_choice(choice: str, reason: str) -> None:
    """One line for each different choice; a choice that needs memory quadratic in the length is a warning."""
    log = logger.warning if choice == "eager" else logger.info
    log(f'signed attention: "auto" runs the {choice} implementation ({reason})')


def _check_implementation(implementation: str, activation: str, negative_mass: float | Tensor, dropout: float) -> None:
    """Raise ValueError where `implementation` is unknown or cannot compute what is asked for."""
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation={implementation!r} is not known; choose one of: {', '.join(IMPLEMENTATIONS)}."
        )
    if activation not in ("tanhmax", "softmax"):
        get_attn_activation(activation)
        raise ValueError(f'attn_activation="{activation}" has no {implementation} path; use "eager" or "compiled".')
    if implementation == "lift" and activation == "tanhmax" and dropout > 0:
        raise ValueError(
            f'implementation="lift" cannot apply dropout={dropout} to coefficients, only to the halves they are the '
            'difference of; use "chunked", "compiled" or "eager", or dropout=0.'
        )
    if implementation != "fused" and _has_zero(negative_mass):
        raise ValueError(
            f"implementation={implementation!r} needs every head's negative mass to be positive, got "
            f'{negative_mass.flatten().tolist()}; use "eager", "compiled" or "fused" where softmax heads and signed '
            "heads mix."
        )


@lru_cache
def _compiled_eager():
    return torch.compile(eager_attention, dynamic=True)


def resolved(activation: str, negative_mass: NegativeMass, query: Tensor) -> tuple[str, float | Tensor]:
    """Activation and negative mass as `per_head`: TanhMax with a mass of 0 is softmax, and only TanhMax has one."""
    mass = per_head(negative_mass, query) if activation == "tanhmax" else 1.0
    return ("softmax", 1.0) if isinstance(mass, float) and mass == 0 else (activation, mass)


def head_shift(negative_mass: float | Tensor, query: Tensor) -> Tensor | None:
    """`score_shift` as `[heads, 1, 1]` in the precision of the scores, None where it is 0; of 0 as large as can be."""
    if isinstance(negative_mass, float) and negative_mass == 1:
        return None
    dtype = torch.promote_types(query.dtype, torch.float32)
    if isinstance(negative_mass, float):
        return torch.full((query.shape[1], 1, 1), score_shift(negative_mass), dtype=dtype, device=query.device)
    negative_mass = negative_mass.to(query.device, dtype).clamp_min(torch.finfo(torch.float32).tiny)
    return score_shift(negative_mass).expand(query.shape[1], 1, 1)


def _has_zero(negative_mass: float | Tensor) -> bool:
    return isinstance(negative_mass, Tensor) and bool((negative_mass == 0).any())
