"""The metrics as users of `evaluate` meet them: in batches, offline, with intervals."""

import subprocess
import sys

import evaluate
import numpy as np
import pytest

from research.faithfulness import (
    AttentionDivergence,
    Comprehensiveness,
    KendallTau,
    PredictionChange,
    RationaleAuprc,
    SignAgreement,
    Sufficiency,
    bootstrap_interval,
    kendall_tau,
)

FIRST, SECOND = [[1, 2, 3], [3, 1], [1, 2, 3, 4]], [[1, 3, 2], [2, 5], [4, 3, 2, 1]]


def test_a_metric_is_the_mean_of_its_function_with_an_interval():
    found = KendallTau().compute(predictions=FIRST, references=SECOND, seed=4)
    taus = kendall_tau(FIRST, SECOND)
    assert found["mean"] == pytest.approx(taus.mean())
    assert (found["low"], found["high"]) == bootstrap_interval(taus, seed=4)
    assert found["examples"] == 3


def test_batches_add_up():
    metric = KendallTau()
    for first, second in zip(FIRST, SECOND, strict=True):
        metric.add_batch(predictions=[first], references=[second])
    assert metric.compute() == KendallTau().compute(predictions=FIRST, references=SECOND)


def test_examples_without_a_value_are_not_counted():
    found = KendallTau().compute(predictions=[[1, 1], [1, 2]], references=[[1, 2], [1, 2]])
    assert (found["mean"], found["examples"]) == (1.0, 1)


@pytest.mark.parametrize(
    ("metric", "predictions", "references", "expected"),
    [
        (PredictionChange, [[0.7, 0.3]], [[0.4, 0.6]], 0.3),
        (AttentionDivergence, [[0.5, -0.5, 0.0]], [[0.0, 0.0, 1.0]], np.log(2)),
        (Comprehensiveness, [[0.5, 0.3]], [0.9], 0.5),
        (Sufficiency, [[0.8, 0.9]], [0.9], 0.05),
        (RationaleAuprc, [[0.9, 0.1, 0.8]], [[1, 0, 0]], 1.0),
        (SignAgreement, [[0.5, -0.5, 0.1, 0.0]], [[2, 1, 0, -1]], 1 / 3),
    ],
)
def test_values_by_hand(metric, predictions, references, expected):
    assert isinstance(metric(), evaluate.Metric)
    assert metric().compute(predictions=predictions, references=references)["mean"] == pytest.approx(expected)


def test_metrics_need_no_network():
    script = (
        "import socket\n"
        "def refuse(*args, **kwargs): raise OSError('no network')\n"
        "socket.socket.connect = socket.create_connection = refuse\n"
        "from research.faithfulness import KendallTau\n"
        "assert KendallTau().compute(predictions=[[1, 2]], references=[[1, 2]])['mean'] == 1"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


@pytest.mark.parametrize(
    ("metric", "predictions", "references", "message"),
    [
        (PredictionChange, [[0.5, 0.5]], [[0.2, 0.3, 0.5]], "example 0 has 2 probabilities and 3 probabilities before"),
        (PredictionChange, [[5.0, -4.0]], [[1.0, 0.0]], r"expected class probabilities.* got \[5.0, -4.0\] in row 0"),
        (AttentionDivergence, [[1.0, 0.0]], [[1.0]], "example 0 has 2 coefficients and 1 other coefficients"),
    ],
)
def test_what_cannot_be_compared_is_refused(metric, predictions, references, message):
    with pytest.raises(ValueError, match=message):
        metric().compute(predictions=predictions, references=references)
