"""Kendall's tau against a count by hand, and the bootstrap interval."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from research.faithfulness import bootstrap_interval, kendall_tau, kept_rows

distinct = st.lists(st.integers(-50, 50), min_size=2, max_size=8, unique=True)


@given(distinct, st.randoms(use_true_random=False))
def test_tau_is_concordant_minus_discordant_pairs(scores, random):
    other = scores[:]
    random.shuffle(other)
    signs = [np.sign((scores[i] - scores[j]) * (other[i] - other[j])) for i, j in combinations(range(len(scores)), 2)]
    assert kendall_tau([scores], [other])[0] == pytest.approx(np.mean(signs))


def test_a_constant_score_and_a_single_token_have_no_tau():
    assert np.isnan(kendall_tau([[1.0, 1.0], [3.0]], [[0.0, 1.0], [2.0]])).all()


def test_examples_keep_their_own_lengths():
    keep = torch.tensor([[1, 1, 1], [1, 1, 0]])
    rows = kept_rows(torch.arange(6.0).view(2, 3), keep)
    assert [row.tolist() for row in rows] == [[0, 1, 2], [3, 4]]


def test_rows_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="of the same examples, got 2 and 1"):
        kendall_tau([[1, 2], [1, 2]], [[1, 2]])
    with pytest.raises(ValueError, match="example 1 has 3 scores and 2 other scores; expected one each per token"):
        kendall_tau([[1, 2], [1, 2, 3]], [[1, 2], [1, 2]])
    with pytest.raises(ValueError, match="example 0 has a number that is NaN or infinite"):
        kendall_tau([[1, float("nan")]], [[1, 2]])


def test_the_interval_covers_the_mean_as_often_as_it_says():
    generator = np.random.default_rng(0)
    intervals = [bootstrap_interval(generator.normal(size=40), 0.9, 300, seed) for seed in range(200)]
    covered = np.mean([low <= 0 <= high for low, high in intervals])
    assert 0.83 <= covered <= 0.95


def test_the_interval_leaves_undefined_examples_out_and_repeats_with_its_seed():
    values = [0.1, float("nan"), 0.5, 0.3]
    assert bootstrap_interval(values, seed=3) == bootstrap_interval([0.1, 0.5, 0.3], seed=3)
    assert bootstrap_interval([0.4, float("nan")]) == (0.4, 0.4)
    assert np.isnan(bootstrap_interval([float("nan")])).all()
