"""Does an explanation agree with what people say?"""

import numpy as np
from sklearn.metrics import average_precision_score

from hf_bidir.faithfulness.ranking import Rows, check_rows


def rationale_auprc(scores: Rows, marked: Rows) -> np.ndarray:
    """The area under the precision-recall curve against the words that people marked (ERASER), `[examples]`.

    Args:
        scores: one row per example, high for words that explain.
        marked: as many rows, 1 for the words that people marked and 0 for the others.

    Returns:
        In (0, 1]; what chance gets is the share of marked words. NaN for an example with none, or nothing else.

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
        polarity: as many rows, above 0 for positive words, below for negative ones, 0 for neutral ones, which do not
            count.

    Returns:
        NaN for an example without polar words. A score of 0 agrees with nothing.

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
