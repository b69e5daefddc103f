"""Accuracy, macro-F1 and the recall of every class."""

from collections.abc import Callable

import numpy as np
from sklearn.metrics import accuracy_score, f1_score, recall_score
from torch import Tensor
from transformers import EvalPrediction


def classification_metrics(names: list[str]) -> Callable[[EvalPrediction], dict[str, float]]:
    """Make a `compute_metrics` for predictions that `predicted_classes` has reduced to label indices.

    Args:
        names: the class names, by label index.

    Returns:
        A function from an evaluation's predictions to `accuracy`, `macro_f1` and `recall_<class name>`, each
        in [0, 1]. A class without an example in the evaluated split has no recall and is left out.
    """

    def compute(evaluation: EvalPrediction) -> dict[str, float]:
        truth, predicted = evaluation.label_ids, evaluation.predictions
        present = np.unique(truth)
        recalls = recall_score(truth, predicted, labels=present, average=None)
        return {
            "accuracy": float(accuracy_score(truth, predicted)),
            "macro_f1": float(f1_score(truth, predicted, average="macro")),
            **{f"recall_{names[index]}": float(recall) for index, recall in zip(present, recalls, strict=True)},
        }

    return compute


def predicted_classes(logits: Tensor | tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """The index of the largest logit: all that the metrics need, so evaluation need not keep the logits."""
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)
