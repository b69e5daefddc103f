"""Attention with any activation: query, key, value -> context, one function per implementation."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.utils import logging

from .activations import WITH_NEGATIVE_MASS, upcast
from .attention_call import Attended, AttentionCall, NegativeMass, attention_call, check_shapes
from .eager_attention import eager_attention, is_transformed

logger = logging.get_logger(__name__)

SHORT = 2**18  # scores of a head, up to which a CPU computes the formula itself
SOFTMAX_HEADS = "softmax heads beside signed heads"  # λ = 0 in some heads


class Implementation(NamedTuple):
    """A way of computing the context of TanhMax, and the calls that it computes."""

    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None, AttentionCall], Tensor]
    computes: tuple[str, ...] = ()  # features of a call, and SOFTMAX_HEADS
    # for query, key, value, keep and call: the reason why "auto" takes it, or None
    preferred: Callable[..., str | None] = lambda *call: None

    def obstacle(self, call: AttentionCall) -> str | None:
        """What it does not compute of a call; None if it computes all."""
        activation = call.activation
        if activation not in (*WITH_NEGATIVE_MASS, "softmax"):
            return activation
        # two softmax attentions would negate the bias, and drop the two halves of a coefficient separately
        computes = self.computes if activation == "tanhmax" else ()
        lacking = [feature for feature in call.features if feature not in computes]
        if not lacking and activation == "tanhmax" and SOFTMAX_HEADS not in computes:
            return SOFTMAX_HEADS if _has_zero(call.negative_mass) else None
        return ", ".join(lacking) or None


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
    causal: bool = False,
    window: int | None = None,
) -> Attended:
    """Multi-head attention whose coefficients may be negative.

    Args:
        query: `[batch, heads, queries, head_dim]`.
        key, value: `[batch, key heads, keys, head_dim]`; the values may have another last size, which is also that of
            the context. With fewer key heads than heads, each key head serves a group of consecutive heads.
        keep: boolean, `[batch or 1, heads or 1, queries or 1, keys]`, True = attend; None = attend everywhere.
        activation: a built-in or registered name (`activations.py`).
        negative_mass: `λ` of TanhMax and balanced attention in [0, 1], one number or one per head (a sequence or a
            tensor of `heads` entries); ignored by the other activations.
        scaling: factor on the scores, by default `head_dim ** -0.5`.
        dropout: probability in [0, 1) of dropping a coefficient; pass 0 outside training.
        causal: query `i` attends to the kept keys `j <= i`, both counted from the first: for queries that continue
            cached keys, pass a mask instead.
        window: query `i` attends to the kept keys with `|i - j| <= window`; needs as many queries as keys.
        implementation:
            "eager"     materialises and returns the coefficients; the only one for registered activations;
            "lift"      softmax attention over the keys `[K; -K]` and values `[V; -V]` on torch's SDPA, without dropout;
                        loses digits where all scores are below 1e-3;
            "chunked"   of the installed package: blocks of scores with their own backward pass, for a CPU;
            "fused"     of the installed package: one Triton kernel, on a GPU, for head dimensions 16 to 256;
            "auto"      the fastest exact one by activation, device, dtype and dropout; logs each choice once.
            All but "eager" take memory linear in the length, and compute balanced attention as two softmax attentions.
            What an implementation does not compute, such as a registered activation, "eager" does, which is logged.

    Returns:
        The context `[batch, heads, queries, head_dim]`, and the coefficients `[batch, heads, queries, keys]` (after
        dropout) from "eager", else None. A query without kept keys gets a context of zeros.

    Raises:
        ValueError: shapes that do not fit, a mask that is not boolean, or an unknown name.
    """
    check_shapes(query, key, value, keep)
    call = attention_call(
        query,
        key,
        activation,
        negative_mass,
        scaling=scaling,
        dropout=dropout,
        causal=causal,
        window=window,
    )
    return attend(query, key, value, keep, call, implementation)


def attend(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall, implementation: str = "auto"
) -> Attended:
    """`bidir_attention` for inputs that are already checked; models call this."""
    compiling = torch.compiler.is_compiling()
    name, reason = implementation, ""
    if name == "auto":
        name, reason = choose_implementation(query, key, value, keep, call)
    elif name != "eager":
        obstacle = _implementation(name).obstacle(call)
        if obstacle:
            name, reason = "eager", f"only it computes {obstacle}"
    if name != "eager" and not compiling and is_transformed(query, key, value, call.negative_mass):
        name, reason = "eager", "only it supports torch.func and forward-mode derivatives"
    if not compiling:
        _log_choice(name, reason, query.device.type)
    if name == "eager":
        return eager_attention(query, key, value, keep, call)
    if call.activation == "balanced":
        return balanced_attention(query, key, value, keep, call, name), None
    if call.activation == "softmax":  # also of layers with a negative mass of 0 beside others
        return softmax_attention(query, key, value, keep, call), None
    return IMPLEMENTATIONS[name].attend(query, key, value, keep, call), None


def _implementation(name: str) -> Implementation:
    if name not in IMPLEMENTATIONS:
        known = ", ".join(("auto", "eager", *IMPLEMENTATIONS))
        known += "" if "fused" in IMPLEMENTATIONS else f"; for others {INSTALL}"
        raise ValueError(f"implementation={name!r} is not known; choose one of: {known}.")
    return IMPLEMENTATIONS[name]


def softmax_attention(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall) -> Tensor:
    """torch's SDPA, with zeros instead of NaN for a query without kept keys."""
    causal_only = call.causal and call.window is None and keep is None
    mask = None if causal_only else call.mask(keep, query, key)
    context = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=call.dropout,
        is_causal=causal_only,
        scale=call.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return _zeroed(context, mask)


def balanced_attention(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall, implementation: str
) -> Tensor:
    """Softmax attention for the query and for its negative, by any implementation, and their weighted difference."""
    half = call.negative_mass / 2
    softmax_call = replace(call, activation="softmax", negative_mass=1.0)
    toward, _ = attend(query, key, value, keep, softmax_call, implementation)
    away, _ = attend(-query, key, value, keep, softmax_call, implementation)
    return ((1 - half) * upcast(toward) - half * upcast(away)).to(value.dtype)


def lifted_attention(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall) -> Tensor:
    """TanhMax as softmax over twice the keys (bipolar lift): keys `[K; -K]`, values `[V; -V]`, the mask repeated.

    For a negative mass below 1, `+shift` and `-shift` are added to the scores of the two halves.
    """
    mask = call.mask(keep, query, key)
    twice = None if mask is None else torch.cat([mask, mask], -1)
    shift = call.shift(query)
    if shift is not None:
        twice = _lifted_bias(shift, twice, key.shape[2]).to(query.dtype)
    context = F.scaled_dot_product_attention(
        query,
        torch.cat([key, -key], 2),
        torch.cat([value, -value], 2),
        attn_mask=twice,
        scale=call.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return _zeroed(context, mask)


def _zeroed(context: Tensor, mask: Tensor | None) -> Tensor:
    """The context, with zeros for queries without kept keys."""
    return context if mask is None else context.masked_fill(~mask.any(-1, keepdim=True), 0)


def _lifted_bias(shift: Tensor, mask: Tensor | None, length: int) -> Tensor:
    """`[batch or 1, heads, queries or 1, 2 * length]`: +shift, then -shift, and -inf where the mask drops a key."""
    shift = shift.expand(-1, 1, length)
    bias = torch.cat([shift, -shift], -1).unsqueeze(0)
    if mask is None:
        return bias
    # A query without kept keys is computed unmasked, which avoids NaN; its context is zeroed afterwards.
    return bias.masked_fill(~mask & mask.any(-1, keepdim=True), -torch.inf)


def choose_implementation(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall
) -> tuple[str, str]:
    """The implementation that "auto" selects, and the reason; `benchmarks/attention.py` compares their speed.

    Under torch.compile on a CPU it is "eager", whose operations the compiler fuses; in an exported graph "lift".
    """
    compiling = torch.compiler.is_compiling()
    queries = query.shape[2]
    obstacle = IMPLEMENTATIONS["lift"].obstacle(call)
    if call.activation == "softmax" and not obstacle:
        return "lift", "softmax has no negative half: torch's SDPA itself"
    one_number = not isinstance(call.negative_mass, Tensor)
    if torch.compiler.is_exporting() and one_number and queries > 1 and not obstacle:
        return "lift", "softmax is one operator of a graph, TanhMax is twenty"
    for name, path in IMPLEMENTATIONS.items():
        if reason := path.preferred(query, key, value, keep, call):
            return name, reason
    if obstacle:
        return "eager", f"only it computes {obstacle}"
    if queries == 1:
        return "eager", ""  # one row of coefficients per head is small
    if call.activation == "balanced":
        return "lift", "two softmax attentions by torch's SDPA"
    if compiling:
        return "eager", "torch.compile fuses the formula"
    if query.device.type == "cpu" and queries * key.shape[2] <= SHORT:
        return "eager", ""  # as fast, and keeps the digits of small scores
    return "lift", "torch's fused kernels compute it"


@lru_cache
def _log_choice(choice: str, reason: str, device: str) -> None:
    """Log each choice with a reason once, as a warning if its memory is quadratic in the length; and once what the
    installed package computes faster."""
    if reason:
        log = logger.warning if choice == "eager" else logger.info
        log(f"signed attention uses the {choice} implementation ({reason})")
    if device == "cuda" and "fused" not in IMPLEMENTATIONS:
        logger.warning_once(f"signed attention: the Triton kernels for GPUs are faster; {INSTALL}.")


def _has_zero(negative_mass: float | Tensor) -> bool:
    """Whether some heads are softmax; False while compiling, where values are unknown."""
    if not isinstance(negative_mass, Tensor) or torch.compiler.is_compiling():
        return False
    return bool((negative_mass == 0).any())


INSTALL = "pip install hf-bidir, and import hf_bidir before you load the checkpoint"
# by name; an installed room adds "fused" and "chunked"
IMPLEMENTATIONS = {"lift": Implementation(lifted_attention)}
