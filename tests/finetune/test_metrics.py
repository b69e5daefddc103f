import numpy as np
import pytest
import torch
from transformers import EvalPrediction

from hf_bidir.finetune.metrics import classification_metrics, predicted_classes


def test_metrics_equal_a_count_by_hand():
    truth, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    metrics = classification_metrics(["no", "yes"])(EvalPrediction(predicted, truth))
    assert metrics["accuracy"] == 0.75
    assert metrics["recall_no"] == pytest.approx(2 / 3)
    assert metrics["recall_yes"] == 1.0
    assert metrics["macro_f1"] == pytest.approx((4 / 5 + 2 / 3) / 2)


def test_a_class_without_examples_has_no_recall():
    metrics = classification_metrics(["a", "b", "c"])(EvalPrediction(np.array([0, 1]), np.array([0, 1])))
    assert "recall_c" not in metrics
    assert metrics["accuracy"] == 1.0


def test_only_the_largest_logit_is_kept():
    logits = torch.tensor([[0.1, 0.9], [2.0, -1.0]])
    assert predicted_classes((logits, None), torch.zeros(2)).tolist() == [1, 0]
