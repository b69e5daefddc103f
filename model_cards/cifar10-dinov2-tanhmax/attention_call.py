"""The inputs and the options of one attention call: checks and conversions of shapes, masks of every kind, negative
masses per head, and everything except query, key, value and keep-mask as one checked object."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .activations import WITH_NEGATIVE_MASS, as_masses, checked_negative_mass, compute_dtype, score_shift

NegativeMass = float | Sequence[float] | Tensor
Attended = tuple[Tensor, Tensor | None]  # context and coefficients

# Float mask entries of at most this drop a key: e^-50 is negligible in a softmax. Swin masks with -100.
MASKED = -50.0


@dataclass(frozen=True)
class AttentionCall:
    """Checked options with all defaults filled in; built by `attention_call`."""

    activation: str = "tanhmax"  # a built-in or registered name (`activations.py`)
    negative_mass: float | Tensor = 1.0  # one number or [heads, 1, 1]; never the number 0, which is softmax
    scaling: float = 1.0  # factor on the scores
    dropout: float = 0.0  # probability that a coefficient is set to 0; the others are scaled by 1 / (1 - dropout)
    causal: bool = False  # query i attends to the keys j <= i, both counted from the first, also of unequal lengths
    window: int | None = None  # query i attends to the keys with |i - j| <= window
    bias: Tensor | None = None  # added to the scores, broadcastable to [batch, heads, queries, keys]
    softcap: float | None = None  # before the bias, scores become softcap * tanh(scores / softcap)
    sinks: Tensor | None = None  # [heads], the score of an extra key that enters the normaliser only

    @property
    def banded(self) -> bool:
        """Whether the position of a query limits its keys."""
        return self.causal or self.window is not None

    @property
    def features(self) -> list[str]:
        """The parts of this call that some implementations do not compute."""
        features = [name for name in ("bias", "softcap", "sinks") if getattr(self, name) is not None]
        if self.dropout and self.activation != "softmax":
            features.append("dropout")
        return features

    def shift(self, query: Tensor) -> Tensor | None:
        """`score_shift` as `[heads, 1, 1]` in the dtype of the scores, finite also for a mass of 0; None if it is 0."""
        mass = self.negative_mass
        heads = query.shape[1]
        dtype = compute_dtype(query.dtype)
        if isinstance(mass, Tensor):
            mass = mass.to(query.device, dtype).clamp_min(torch.finfo(torch.float32).tiny)
            return score_shift(mass).expand(heads, 1, 1)
        if mass == 1:
            return None
        return torch.full((heads, 1, 1), score_shift(mass), dtype=dtype, device=query.device)

    def band(self, rows: slice, columns: slice, device: torch.device) -> Tensor | None:
        """Boolean `[rows, columns]`: the pairs that causality and window keep; None without either."""
        if not self.banded:
            return None
        queries = torch.arange(rows.start, rows.stop, device=device)
        keys = torch.arange(columns.start, columns.stop, device=device)
        distance = queries[:, None] - keys
        if self.window is None:
            return distance >= 0
        nearest = 0 if self.causal else -self.window
        return (distance >= nearest) & (distance <= self.window)

    def mask(self, keep: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        """A keep-mask, combined with causality and window: `[batch or 1, heads or 1, queries or 1, keys]`."""
        band = self.band(slice(0, query.shape[2]), slice(0, key.shape[2]), query.device)
        if band is None or keep is None:
            return keep if band is None else band[None, None]
        return keep & band


def attention_call(
    query: Tensor, key: Tensor, activation: str = "tanhmax", negative_mass: NegativeMass = 1.0, **options: Any
) -> AttentionCall:
    """Check options as a user passes them and fill in the defaults; a mass of 0 becomes softmax.

    Args:
        options: other fields of `AttentionCall`; a scaling of None is `head_dim ** -0.5`.

    Raises:
        ValueError: a number out of range, or a window with unequal numbers of queries and keys.
    """
    dropout = options.get("dropout", 0.0)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout}.")
    window = options.get("window")
    if window is not None and window < 1:
        raise ValueError(f"window must be an integer of at least 1, or None; got {window}.")
    if window is not None and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"window needs as many queries as keys; got {query.shape[2]} queries for {key.shape[2]} keys. Pass a mask "
            'of the keys to attend to; call a model with attn_scope="window" with use_cache=False.'
        )
    mass = per_head(negative_mass, query) if activation in WITH_NEGATIVE_MASS else 1.0
    if isinstance(mass, float) and mass == 0:
        activation, mass = "softmax", 1.0
    if options.get("scaling") is None:
        options["scaling"] = query.shape[-1] ** -0.5
    return AttentionCall(activation, mass, **options)


def keep_and_bias(
    attention_mask: Tensor | None, position_bias: Tensor | None = None, find_zeros: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """Split masks and biases into a boolean keep-mask and an additive bias; None for either if it has no effect.

    Args:
        attention_mask: boolean, integer, or float. Float entries of at most `MASKED` drop the key, the others are a
            bias. A large negative bias would not drop it: `e^-s` would give that key all of the weight.
        position_bias: an additive bias, which in some models also contains a mask.
        find_zeros: whether to drop a bias that is 0 everywhere; on a GPU this synchronises.
    """
    keep, bias = None, position_bias
    if attention_mask is not None and attention_mask.is_floating_point():
        bias = attention_mask if bias is None else attention_mask + bias
    elif attention_mask is not None:
        keep = attention_mask.bool()
    if bias is None:
        return keep, None
    dropped = bias <= MASKED
    keep = ~dropped if keep is None else keep & ~dropped
    bias = bias.masked_fill(dropped, 0)
    # most float masks add nothing; values are unknown while compiling, and a position bias is hardly ever 0
    if torch.compiler.is_compiling() or bias.requires_grad or position_bias is not None:
        find_zeros = False
    return keep, None if find_zeros and not bias.any() else bias


def same_batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value expanded to one batch size; a batch of 1 is broadcast."""
    batch = max(len(query), len(key))
    query, key, value = (x.expand(batch, -1, -1, -1) for x in (query, key, value))
    return query, key, value


def per_head(negative_mass: NegativeMass, query: Tensor) -> float | Tensor:
    """The negative mass as a float, or as a tensor `[heads, 1, 1]` if the heads differ or it was given as a tensor."""
    if isinstance(negative_mass, Tensor):
        masses = checked_negative_mass(negative_mass).flatten()
    else:
        masses = as_masses(negative_mass, depth=1)
    if isinstance(masses, float):
        return masses
    if len(masses) not in (1, query.shape[1]):
        raise ValueError(
            f"negative_mass needs one value, or one for each of the {query.shape[1]} heads, got {len(masses)}."
        )
    if isinstance(masses, Tensor):
        return masses.view(-1, 1, 1)
    if len(set(masses)) == 1:
        return masses[0]
    tensor = _as_tensor if torch.compiler.is_compiling() else _known_tensor
    return tensor(tuple(masses), query.device).view(-1, 1, 1)


def _as_tensor(masses: tuple[float, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(masses, dtype=torch.float32, device=device)


_known_tensor = lru_cache(_as_tensor)  # once, because copying numbers to a GPU makes the CPU wait


def check_shapes(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None) -> None:
    """Raise ValueError with all shapes unless they fit."""
    if not _fit(query.shape, key.shape, value.shape):
        raise ValueError(
            "expected query [batch, heads, queries, head_dim], key [batch, key heads, keys, head_dim] and value "
            "[batch, key heads, keys, value_dim], where key heads divide heads and no size is 0; got "
            f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}."
        )
    if keep is not None:
        _check_keep(keep, (*query.shape[:3], key.shape[2]))


def _fit(query: torch.Size, key: torch.Size, value: torch.Size) -> bool:
    if len(query) != 4 or len(key) != 4 or len(value) != 4 or 0 in query or 0 in value:
        return False
    if value[:3] != key[:3] or query[0] != key[0] or query[3] != key[3]:
        return False
    return query[1] % key[1] == 0


def _check_keep(keep: Tensor, full: tuple[int, ...]) -> None:
    if keep.dtype != torch.bool:
        raise ValueError(f"keep must be boolean (True = attend), got {keep.dtype}; convert numbers with mask == 1.")
    batch, heads, queries, keys = full
    shape = tuple(keep.shape)
    fits = len(shape) == 4 and shape[0] in (1, batch) and shape[1] in (1, heads) and shape[2] in (1, queries)
    if not fits or shape[3] != keys:
        raise ValueError(f"keep must broadcast to [batch, heads, queries, keys] = {full}, got {shape}.")
