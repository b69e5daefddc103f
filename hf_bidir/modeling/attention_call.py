"""The options of one attention call (everything except query, key, value and keep-mask) as one checked object."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .activations import WITH_NEGATIVE_MASS, compute_dtype, score_shift
from .attention_inputs import NegativeMass, check_dropout, is_captured, per_head, remembered

MASK_ROWS = 256  # rows of a mask that are compared at a time


@dataclass(frozen=True)
class AttentionCall:
    """Checked options with all defaults filled in; built by `attention_call`.

    Args:
        activation: a built-in or registered name (`activations.py`).
        negative_mass: `λ`, one number or `[heads, 1, 1]`; never the number 0, which is softmax.
        scaling: factor on the scores.
        dropout: probability in [0, 1) that a coefficient is set to 0; the others are scaled by `1 / (1 - dropout)`.
        causal: query `i` attends to the keys `j <= i`, both counted from the first, also where the lengths differ.
        window: query `i` attends to the keys with `|i - j| <= window`.
        bias: added to the scores, broadcastable to `[batch, heads, queries, keys]`.
        softcap: before the bias, scores become `softcap * tanh(scores / softcap)`.
        sinks: `[heads]`, the score of an extra key without a value, which enters the normaliser only.
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
        """Whether the position of a query limits its keys."""
        return self.causal or self.window is not None

    @property
    def score_terms(self) -> str:
        """The names of the terms that some paths do not compute, comma-separated."""
        return ", ".join(name for name in ("bias", "softcap", "sinks") if getattr(self, name) is not None)

    def shift(self, query: Tensor) -> Tensor | None:
        """`score_shift` as `[heads, 1, 1]` in the dtype of the scores, finite also for a mass of 0; None if it is 0."""
        mass: Any = self.negative_mass
        if isinstance(mass, float) and mass == 1:
            return None
        dtype = compute_dtype(query.dtype)
        if isinstance(mass, float):
            return torch.full((query.shape[1], 1, 1), score_shift(mass), dtype=dtype, device=query.device)
        mass = mass.to(query.device, dtype).clamp_min(torch.finfo(torch.float32).tiny)
        return score_shift(mass).expand(query.shape[1], 1, 1)

    def reach(self, rows: slice, keys: int) -> slice:
        """The keys that at least one of these queries may attend to."""
        first = 0 if self.window is None else max(0, rows.start - self.window)
        last = keys if self.window is None else min(keys, rows.stop + self.window)
        return slice(first, min(last, rows.stop) if self.causal else last)

    def band(self, rows: slice, columns: slice, device: torch.device) -> Tensor | None:
        """Boolean `[rows, columns]`: the pairs that causality and window keep; None without either."""
        if not self.banded:
            return None
        distance = torch.arange(rows.start, rows.stop, device=device)[:, None] - torch.arange(
            columns.start, columns.stop, device=device
        )
        if self.window is None:
            return distance >= 0
        return (distance >= (0 if self.causal else -self.window)) & (distance <= self.window)

    def partial_bands(self, rows: slice, columns: slice, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
        """The parts of `columns`, relative to its start, in which `band` drops a pair, each with its band."""
        if not self.banded:
            return
        # no pair is dropped between `first` and `last`; both may lie outside the columns if a mask leaves only a few
        first = columns.start if self.window is None else max(columns.start, rows.stop - 1 - self.window)
        first = min(first, columns.stop)
        last = min(columns.stop, rows.start + 1 if self.causal else rows.start + 1 + (self.window or 0))
        for part in (slice(columns.start, first), slice(max(first, last), columns.stop)):
            if part.start < part.stop and (band := self.band(rows, part, device)) is not None:
                shifted = slice(part.start - columns.start, part.stop - columns.start)
                yield shifted, band

    def mask(self, keep: Tensor | None, rows: slice, columns: slice, device: torch.device) -> Tensor | None:
        """The part of a keep-mask for these queries and keys, combined with the band: `[..., rows, columns]`."""
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
    **terms: Any,
) -> AttentionCall:
    """Check options as a user passes them and fill in the defaults.

    Args:
        query: `[batch, heads, queries, head_dim]`; `key` has `keys` in place of `queries`.
        negative_mass: one number or one per head; ignored by activations without one. 0 becomes softmax.
        scaling: by default `head_dim ** -0.5`.
        terms: `bias`, `softcap`, `sinks`.

    Raises:
        ValueError: a number out of range, or a window with unequal numbers of queries and keys.
    """
    # inlined checks: most calls have a mass in range, no dropout and no window
    if dropout:
        check_dropout(dropout)
    if window is not None:
        check_window(window)
    if window is not None and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"window needs as many queries as keys; got {query.shape[2]} queries for {key.shape[2]} keys. Pass a mask "
            'of the keys to attend to; call a model with attn_scope="window" with use_cache=False.'
        )
    mass = negative_mass if activation in WITH_NEGATIVE_MASS else 1.0
    if type(mass) is not float or not 0 <= mass <= 1:
        mass = per_head(mass, query)
    if isinstance(mass, float) and mass == 0:
        activation, mass = "softmax", 1.0
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return AttentionCall(activation, mass, scaling, dropout, causal, window, **terms)


def check_window(window: int | None) -> None:
    """Raise ValueError unless `window` is None or an integer of at least 1."""
    if window is not None and (isinstance(window, float) or window < 1):
        raise ValueError(f"window must be an integer of at least 1, or None; got {window!r}.")


def is_sliding_window(keep: Tensor | None, sliding: int) -> bool:
    """Whether a mask keeps exactly the keys `i - sliding < j <= i` of each query `i`, as it does without padding."""
    if keep is None or keep.shape[2] != keep.shape[3] or sliding < 2 or is_captured(keep):
        return False
    return remembered(keep, sliding, lambda: _is_band(keep, sliding))


def _is_band(keep: Tensor, sliding: int) -> bool:
    length, call = keep.shape[2], AttentionCall(causal=True, window=sliding - 1)
    blocks = (slice(first, min(first + MASK_ROWS, length)) for first in range(0, length, MASK_ROWS))
    bands = ((rows, call.band(rows, slice(0, length), keep.device)) for rows in blocks)
    return all(band is not None and bool((keep[:, :, rows] == band).all()) for rows, band in bands)
