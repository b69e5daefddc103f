"""Agreement of scores with others and with people, and the metrics as users of `evaluate` meet them."""

import socket
from itertools import combinations

import evaluate
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from research.faithfulness import (
    Comprehensiveness,
    KendallTau,
    PredictionChange,
    RationaleAuprc,
    SignAgreement,
    Sufficiency,
    bootstrap_interval,
    kendall_tau,
    kept_rows,
    metrics,
    rationale_auprc,
    sign_agreement,
)

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
    ("measure", "first", "second", "message"),
    [
        (kendall_tau, [[1, 2], [1, 2]], [[1, 2]], "of the same examples, got 2 and 1"),
        (kendall_tau, [[1, 2, 3]], [[1, 2]], "example 0 has 3 scores and 2 other scores; expected one each per token"),
        (kendall_tau, [[1, np.nan]], [[1, 2]], "example 0 has a number that is NaN or infinite"),
        (sign_agreement, [[1], [1, 2]], [[1], [1]], "example 1 has 2 scores and 1 polarities"),
    ],
)
def test_rows_that_do_not_fit_are_named(measure, first, second, message):
    with pytest.raises(ValueError, match=message):
        measure(first, second)


def test_the_interval_leaves_undefined_examples_out_and_repeats_with_its_seed():
    values = [0.1, float("nan"), 0.5, 0.3]
    assert bootstrap_interval(values, seed=3) == bootstrap_interval([0.1, 0.5, 0.3], seed=3)
    assert bootstrap_interval([0.4, float("nan")]) == (0.4, 0.4)
    assert np.isnan(bootstrap_interval([float("nan")])).all()


@pytest.mark.parametrize(
    ("measure", "scores", "others", "expected"),
    [
        # ranked: marked, not, marked, not; precision at the marked ones 1 and 2/3
        (rationale_auprc, [0.9, 0.7, 0.5, 0.1], [1, 0, 1, 0], (1 + 2 / 3) / 2),
        (rationale_auprc, [0.1, 0.2], [0, 0], np.nan),
        (rationale_auprc, [0.1, 0.2], [1, 1], np.nan),
        # neutral words do not count, and a score of 0 agrees with nothing
        (sign_agreement, [-1.0, 3.0, 0.0, 5.0], [-2, 1, 1, 0], 2 / 3),
        (sign_agreement, [1.0], [0], np.nan),
        (kendall_tau, [1.0, 1.0], [0.0, 1.0], np.nan),
        (kendall_tau, [3.0], [2.0], np.nan),
    ],
)
def test_measures_of_one_example_are_those_by_hand_and_nan_where_they_are_undefined(measure, scores, others, expected):
    assert measure([scores], [others])[0] == pytest.approx(expected, nan_ok=True)


FIRST, SECOND = [[1, 2, 3], [3, 1], [1, 2, 3, 4], [1, 1]], [[1, 3, 2], [2, 5], [4, 3, 2, 1], [1, 2]]


def test_a_metric_is_the_mean_of_its_function_over_defined_examples_with_an_interval_also_in_batches():
    found = KendallTau().compute(predictions=FIRST, references=SECOND, seed=4)
    taus = kendall_tau(FIRST, SECOND)
    low, high = bootstrap_interval(taus, seed=4)
    assert found == {"mean": pytest.approx(np.nanmean(taus)), "low": low, "high": high, "examples": 3}
    metric = KendallTau()
    for first, second in zip(FIRST, SECOND, strict=True):
        metric.add_batch(predictions=[first], references=[second])
    assert metric.compute(seed=4) == found


@pytest.mark.parametrize(
    ("metric", "predictions", "references", "expected"),
    [
        (PredictionChange, [[0.7, 0.3]], [[0.4, 0.6]], 0.3),
        (Comprehensiveness, [[0.5, 0.3]], [0.9], 0.5),
        (Sufficiency, [[0.8, 0.9]], [0.9], 0.05),
        (RationaleAuprc, [[0.9, 0.1, 0.8]], [[1, 0, 0]], 1.0),
        (SignAgreement, [[0.5, -0.5, 0.1, 0.0]], [[2, 1, 0, -1]], 1 / 3),
    ],
)
def test_values_by_hand(metric, predictions, references, expected):
    assert isinstance(metric(), evaluate.Metric)
    assert metric().compute(predictions=predictions, references=references)["mean"] == pytest.approx(expected)


def test_metrics_are_loaded_by_the_library_without_a_network(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    metric = evaluate.load(metrics.__file__, "kendall_tau", cache_dir=str(tmp_path))
    assert metric.compute(predictions=[[1, 2]], references=[[1, 2]])["mean"] == 1
    with pytest.raises(ValueError, match=r"expected one of kendall_tau, .* got 'tau'"):
        evaluate.load(metrics.__file__, "tau", cache_dir=str(tmp_path))
