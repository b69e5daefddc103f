"""Rank agreement between two scores of the same tokens, and bootstrap intervals."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import bootstrap, kendalltau
from torch import Tensor

Rows = Sequence[Sequence[float] | np.ndarray]


def kept_rows(scores: Tensor, keep: Tensor) -> list[np.ndarray]:
    """Split padded scores `[batch, length]` into one array per example, without padding."""
    return [row[kept].float().cpu().numpy() for row, kept in zip(scores.detach(), keep.bool(), strict=True)]


def kendall_tau(first: Rows, second: Rows) -> np.ndarray:
    """Kendall's tau-b of two rankings of the same tokens, `[examples]`, each in [-1, 1].

    Args:
        first, second: one row of scores per example, of any length.

    Returns:
        NaN where tau is not defined: fewer than two tokens, or a constant score.

    Raises:
        ValueError: different numbers of examples, or rows of an example that differ in length or are not finite.
    """
    check_rows(first, second)
    taus = [kendalltau(a, b).statistic if len(a) > 1 else np.nan for a, b in zip(first, second, strict=True)]
    return np.array(taus, dtype=float)


def bootstrap_interval(
    values: Sequence[float] | np.ndarray, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over examples (scipy); NaN are ignored.

    Args:
        values: one number per example.
        confidence: level in (0, 1).
        resamples: number of bootstrap samples.
        seed: seed of the resampling.

    Returns:
        Low and high end; both equal the value itself if there is only one, and NaN if there is none.

    Raises:
        ValueError: a confidence outside (0, 1), or no resamples.
    """
    if not 0 < confidence < 1 or resamples < 1:
        raise ValueError(
            f"expected a confidence in (0, 1) and at least one resample, got {confidence} and {resamples}."
        )
    values = np.asarray(values, dtype=float)
    values = values[~np.isnan(values)]
    if len(values) < 2:
        return (float(values[0]),) * 2 if len(values) else (float("nan"),) * 2
    options = {"confidence_level": confidence, "n_resamples": resamples, "method": "percentile"}
    interval = bootstrap((values,), np.mean, rng=np.random.default_rng(seed), **options).confidence_interval
    return float(interval.low), float(interval.high)


def check_rows(first: Rows, second: Rows, one: str = "scores", other: str = "other scores", per: str = "token") -> None:
    """Raise ValueError for rows that cannot be compared; the message calls them `one` and `other`."""
    if len(first) != len(second):
        raise ValueError(f"expected {one} and {other} of the same examples, got {len(first)} and {len(second)}.")
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        if len(a) != len(b):
            raise ValueError(f"example {index} has {len(a)} {one} and {len(b)} {other}; expected one each per {per}.")
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise ValueError(f"example {index} has a number that is NaN or infinite in its {one} or {other}.")
