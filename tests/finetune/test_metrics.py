import numpy as np
import pytest
import torch
from transformers import EvalPrediction

from hf_bidir.finetune.metrics import (
    classification_metrics,
    distillation_metrics,
    predicted_classes,
)


def test_metrics_equal_a_count_by_hand_and_a_class_without_examples_has_no_recall():
    truth, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    metrics = classification_metrics(["no", "yes", "maybe"])(EvalPrediction((predicted, np.ones(4)), truth))
    f1 = (4 / 5 + 2 / 3) / 2
    assert metrics == pytest.approx({"accuracy": 0.75, "macro_f1": f1, "recall_no": 2 / 3, "recall_yes": 1.0})


def test_only_the_class_of_the_largest_logit_and_its_probability_are_kept():
    logits = torch.tensor([[0.0, 0.0, 5.0], [2.0, 1.0, 0.0]])
    classes, probabilities = predicted_classes((logits, None), torch.zeros(2))
    assert classes.tolist() == [2, 0]
    assert torch.equal(probabilities, logits.softmax(-1)[[0, 1], [2, 0]])


def test_the_relative_error_is_that_of_the_whole_split_not_a_mean_over_examples():
    distances, norms = np.array([[1.0, 0.0], [0.0, 4.0]]), np.array([[1.0, 2.0], [3.0, 6.0]])
    metrics = distillation_metrics(EvalPrediction({"relative_error": distances}, {"relative_error": norms}))
    assert metrics == {"relative_error_0": 0.25, "relative_error_1": 0.5, "relative_error": 0.375}
