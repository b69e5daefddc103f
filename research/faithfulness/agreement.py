"""Agreement of scores with other scores of the same tokens and with human annotations, and bootstrap intervals."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import bootstrap, kendalltau
from sklearn.metrics import average_precision_score
from torch import Tensor

Rows = Sequence[Sequence[float] | np.ndarray]


def kept_rows(scores: Tensor, keep: Tensor) -> list[np.ndarray]:
    """Split padded scores `[batch, length]` into one array per example, without padding."""
    return [row[keep_row].float().cpu().numpy() for row, keep_row in zip(scores.detach(), keep.bool(), strict=True)]


def kendall_tau(first: Rows, second: Rows) -> np.ndarray:
    """Kendall's tau-b of two scores of the same tokens, one row per example, `[examples]` in [-1, 1].

    NaN where tau is not defined: fewer than two tokens, or a constant score. Raises ValueError for different numbers of
    examples, or rows of an example that differ in length or are not finite.
    """
    check_rows(first, second)
    taus = [kendalltau(a, b).statistic if len(a) > 1 else np.nan for a, b in zip(first, second, strict=True)]
    return np.array(taus, dtype=float)


def bootstrap_interval(
    values: Sequence[float] | np.ndarray, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Low and high end of the percentile bootstrap interval of the mean over examples (scipy); NaN are ignored.

    Both equal the value itself if there is only one, and NaN if there is none. Raises ValueError for a confidence
    outside (0, 1), or no resamples.
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


def check_rows(
    first: Rows, second: Rows, name: str = "scores", other_name: str = "other scores", per: str = "token"
) -> None:
    """Raise ValueError for rows that cannot be compared; the message calls them `one` and `other`."""
    if len(first) != len(second):
        raise ValueError(f"expected {name} and {other_name} of the same examples, got {len(first)} and {len(second)}.")
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        if len(a) != len(b):
            raise ValueError(
                f"example {index} has {len(a)} {name} and {len(b)} {other_name}; expected one each per {per}."
            )
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise ValueError(f"example {index} has a number that is NaN or infinite in its {name} or {other_name}.")


def rationale_auprc(scores: Rows, marked: Rows) -> np.ndarray:
    """The area under the precision-recall curve against the words that annotators marked (ERASER), `[examples]`.

    In (0, 1]; the chance level is the share of marked words. NaN for an example with no or only marked words.

    Args:
        scores: one row per example, higher for more important words.
        marked: as many rows, 1 for marked words and 0 for the others. Errors as in `kendall_tau`.
    """
    check_rows(scores, marked, "scores", "marks")
    return np.array(
        [
            average_precision_score(truth, row) if 0 < np.sum(truth) < len(truth) else np.nan
            for row, truth in zip(scores, marked, strict=True)
        ]
    )


def sign_agreement(scores: Rows, polarity: Rows) -> np.ndarray:
    """The share of polar words whose score has the human sign, `[examples]`, in [0, 1]; NaN without polar words.

    A score of 0 never agrees.

    Args:
        scores: one row per example, signed.
        polarity: as many rows, above 0 for positive words, below 0 for negative ones, 0 for neutral ones, which are
            ignored. Errors as in `kendall_tau`.
    """
    check_rows(scores, polarity, "scores", "polarities")
    shares = []
    for row, truth in zip(scores, polarity, strict=True):
        polar = np.asarray(truth) != 0
        same = np.sign(np.asarray(row)[polar]) == np.sign(np.asarray(truth)[polar])
        shares.append(same.mean() if polar.any() else np.nan)
    return np.array(shares)
