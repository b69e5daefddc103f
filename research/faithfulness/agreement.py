"""Agreement of scores with other scores of the same tokens and with human annotations."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import kendalltau
from torch import Tensor

Rows = Sequence[Sequence[float] | np.ndarray]


def kept_rows(scores: Tensor, keep: Tensor) -> list[np.ndarray]:
    """Split padded scores `[batch, length]` into one array per example, without padding."""
    return [row[keep_row].float().cpu().numpy() for row, keep_row in zip(scores.detach(), keep.bool(), strict=True)]


def kendall_tau(first: Rows, second: Rows) -> np.ndarray:
    """Kendall's tau-b of two scores of the same tokens, one row per example, `[examples]` in [-1, 1].

    NaN where tau is not defined: fewer than two tokens, or a constant score.
    """
    taus = [kendalltau(a, b).statistic if len(a) > 1 else np.nan for a, b in zip(first, second, strict=True)]
    return np.array(taus, dtype=float)


def sign_agreement(scores: Rows, polarity: Rows) -> np.ndarray:
    """The share of polar words whose score has the human sign, `[examples]`, in [0, 1]; NaN without polar words.

    A score of 0 never agrees.

    Args:
        scores: one row per example, signed.
        polarity: as many rows, above 0 for positive words, below 0 for negative ones, 0 for neutral ones, which are
            ignored.
    """
    shares = []
    for row, truth in zip(scores, polarity, strict=True):
        polar = np.asarray(truth) != 0
        same = np.sign(np.asarray(row)[polar]) == np.sign(np.asarray(truth)[polar])
        shares.append(same.mean() if polar.any() else np.nan)
    return np.array(shares)
