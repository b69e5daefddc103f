"""What a call of attention carries beside query, key, value and mask: one object, made once and handed on."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .activations import score_shift
from .attention_inputs import NegativeMass, check_dropout, per_head


@dataclass(frozen=True)
class AttentionCall:
    """Checked and complete; `attention_call` makes it of what a user gives.

    Args:
        activation: a built-in or registered name (`activations.py`).
        negative_mass: `λ` of TanhMax, one number or `[heads, 1, 1]`; never the number 0, which is softmax.
        scaling: factor on the scores.
        dropout: probability in [0, 1) that a coefficient is set to 0, the others growing by `1 / (1 - dropout)`.
        causal: query `i` attends to the keys `j <= i`.
        window: query `i` attends to the keys with `|i - j| <= window`.
        bias: added to the scores, broadcastable to `[batch, heads, queries, keys]`.
        softcap: before that, scores become `softcap * tanh(scores / softcap)`.
        sinks: `[heads]`, the score of a key that has no value and takes part in the normaliser alone.
    """

    activation: str = "tanhmax"
    negative_mass: float | Tensor = 1.0
    scaling: float = 1.0
    dropout: float = 0.0
    causal: bool = False
    window: int | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def banded(self) -> bool:
        """Whether queries see different keys by their place."""
        return self.causal or self.window is not None

    @property
    def score_terms(self) -> str:
        """What else is done with the scores, listed; only the eager path computes it."""
        return ", ".join(name for name in ("bias", "softcap", "sinks") if getattr(self, name) is not None)

    def shift(self, query: Tensor) -> Tensor | None:
        """`score_shift` as `[heads, 1, 1]` in the precision of scores, None where it is 0; of 0 as large as can be."""
        mass = self.negative_mass
        if isinstance(mass, float) and mass == 1:
            return None
        dtype = torch.promote_types(query.dtype, torch.float32)
        if isinstance(mass, float):
            return torch.full((query.shape[1], 1, 1), score_shift(mass), dtype=dtype, device=query.device)
        mass = mass.to(query.device, dtype).clamp_min(torch.finfo(torch.float32).tiny)
        return score_shift(mass).expand(query.shape[1], 1, 1)

    def reach(self, rows: slice, keys: int) -> slice:
        """The keys that some of these queries may attend to."""
        first = 0 if self.window is None else max(0, rows.start - self.window)
        last = keys if self.window is None else min(keys, rows.stop + self.window)
        return slice(first, min(last, rows.stop) if self.causal else last)

    def band(self, rows: slice, columns: slice, device: torch.device) -> Tensor | None:
        """Boolean `[rows, columns]`: which pairs causality and window leave. None where they are not asked for."""
        if not self.banded:
            return None
        distance = torch.arange(rows.start, rows.stop, device=device)[:, None] - torch.arange(
            columns.start, columns.stop, device=device
        )
        kept = distance >= 0 if self.causal else distance >= -self.window
        return kept if self.window is None else kept & (distance <= self.window)

    def partial_bands(self, rows: slice, columns: slice, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
        """The columns, counted from the first of these, in which `band` drops some pair, and what it says there."""
        if not self.banded:
            return
        # between these two no pair is dropped; either may lie outside the columns, of which a mask may leave few
        first = columns.start if self.window is None else max(columns.start, rows.stop - 1 - self.window)
        first = min(first, columns.stop)
        last = min(columns.stop, rows.start + 1 if self.causal else rows.start + 1 + (self.window or 0))
        for part in (slice(columns.start, first), slice(max(first, last), columns.stop)):
            if part.start < part.stop:
                shifted = slice(part.start - columns.start, part.stop - columns.start)
                yield shifted, self.band(rows, part, device)

    def mask(self, keep: Tensor | None, rows: slice, columns: slice, device: torch.device) -> Tensor | None:
        """The part of a keep-mask that belongs to these queries and keys, with the band: `[..., rows, columns]`."""
        band = self.band(rows, columns, device)
        if keep is None:
            return band if band is None else band[None, None]
        keep = keep[..., rows if keep.shape[2] > 1 else slice(None), columns]
        return keep if band is None else keep & band


def attention_call(
    query: Tensor,
    key: Tensor,
    activation: str = "tanhmax",
    negative_mass: NegativeMass = 1.0,
    scaling: float | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    window: int | None = None,
    **terms: Tensor | float | None,
) -> AttentionCall:
    """`AttentionCall` for a query `[batch, heads, queries, head_dim]` and a key of its keys, as a user gives it.

    Args:
        negative_mass: one number or one per head; only TanhMax has one, and TanhMax with 0 is softmax.
        scaling: by default `head_dim ** -0.5`.
        terms: `bias`, `softcap`, `sinks`.

    Raises:
        ValueError: a number out of its range; or a window where queries and keys differ in number.
    """
    check_dropout(dropout)
    check_window(window)
    if window is not None and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"window needs a query for every key; got {query.shape[2]} queries for {key.shape[2]} keys. Say in a mask "
            'which keys are attended to; to a model with attn_scope="window" pass use_cache=False.'
        )
    mass = per_head(negative_mass, query) if activation == "tanhmax" else 1.0
    if isinstance(mass, float) and mass == 0:
        activation, mass = "softmax", 1.0
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return AttentionCall(activation, mass, scaling, dropout, causal, window, **terms)


def check_window(window: int | None) -> None:
    """Raise ValueError unless a window is a whole number of at least 1, or None."""
    if window is not None and (isinstance(window, float) or window < 1):
        raise ValueError(f"window must be a whole number of at least 1, or None; got {window!r}.")
