"""Agreement of explanations with human annotations."""

import numpy as np
from sklearn.metrics import average_precision_score

from research.faithfulness.ranking import Rows, check_rows


def rationale_auprc(scores: Rows, marked: Rows) -> np.ndarray:
    """The area under the precision-recall curve against the words that annotators marked (ERASER), `[examples]`.

    Args:
        scores: one row per example, higher for more important words.
        marked: as many rows, 1 for marked words and 0 for the others.

    Returns:
        In (0, 1]; the chance level is the share of marked words. NaN for an example with no or only marked words.

    Raises:
        ValueError: as `kendall_tau`.
    """
    check_rows(scores, marked, "scores", "marks")
    return np.array(
        [
            average_precision_score(truth, row) if 0 < np.sum(truth) < len(truth) else np.nan
            for row, truth in zip(scores, marked, strict=True)
        ]
    )


def sign_agreement(scores: Rows, polarity: Rows) -> np.ndarray:
    """The share of polar words whose score has the human sign, `[examples]`, in [0, 1].

    Args:
        scores: one row per example, signed.
        polarity: as many rows, above 0 for positive words, below 0 for negative ones, 0 for neutral ones, which are
            ignored.

    Returns:
        NaN for an example without polar words. A score of 0 never agrees.

    Raises:
        ValueError: as `kendall_tau`.
    """
    check_rows(scores, polarity, "scores", "polarities")
    shares = []
    for row, truth in zip(scores, polarity, strict=True):
        polar = np.asarray(truth) != 0
        same = np.sign(np.asarray(row)[polar]) == np.sign(np.asarray(truth)[polar])
        shares.append(same.mean() if polar.any() else np.nan)
    return np.array(shares)
