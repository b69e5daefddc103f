"""Agreement of scores with others and with people."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from research.faithfulness import kendall_tau, kept_rows, sign_agreement

distinct = st.lists(st.integers(-50, 50), min_size=2, max_size=8, unique=True)


@given(distinct, st.randoms(use_true_random=False))
def test_tau_is_concordant_minus_discordant_pairs(scores, random):
    other = scores[:]
    random.shuffle(other)
    signs = [np.sign((scores[i] - scores[j]) * (other[i] - other[j])) for i, j in combinations(range(len(scores)), 2)]
    assert kendall_tau([scores], [other])[0] == pytest.approx(np.mean(signs))


def test_examples_keep_their_own_lengths():
    keep = torch.tensor([[1, 1, 1], [1, 1, 0]])
    rows = kept_rows(torch.arange(6.0).view(2, 3), keep)
    assert [row.tolist() for row in rows] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("measure", "scores", "others", "expected"),
    [
        # neutral words do not count, and a score of 0 agrees with nothing
        (sign_agreement, [-1.0, 3.0, 0.0, 5.0], [-2, 1, 1, 0], 2 / 3),
        (sign_agreement, [1.0], [0], np.nan),
        (kendall_tau, [1.0, 1.0], [0.0, 1.0], np.nan),
        (kendall_tau, [3.0], [2.0], np.nan),
    ],
)
def test_measures_of_one_example_are_those_by_hand_and_nan_where_they_are_undefined(measure, scores, others, expected):
    assert measure([scores], [others])[0] == pytest.approx(expected, nan_ok=True)
