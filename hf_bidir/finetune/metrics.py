"""Metrics of classification and distillation."""

from collections.abc import Callable

import numpy as np
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor
from transformers import EvalPrediction


def classification_metrics(names: list[str]) -> Callable[[EvalPrediction], dict[str, float]]:
    """A `compute_metrics` for what `predicted_classes` returns; `names` are the classes, by index.

    The metrics are `accuracy`, `macro_f1` and `recall_<class name>`, each in [0, 1]. A class without an example in the
    evaluated split has no recall and is left out. The Trainer turns numbers of numpy into floats.
    """

    def compute(evaluation: EvalPrediction) -> dict[str, float]:
        truth, (predicted, _) = evaluation.label_ids, evaluation.predictions
        metrics = {
            "accuracy": accuracy_score(truth, predicted),
            "macro_f1": f1_score(truth, predicted, average="macro"),
        }
        for index in np.unique(truth):
            metrics[f"recall_{names[index]}"] = np.mean(predicted[truth == index] == index)
        return metrics

    return compute


def predicted_classes(logits: Tensor | tuple[Tensor, ...], labels: Tensor) -> tuple[Tensor, Tensor]:
    """The predicted classes and their probabilities, so that evaluation does not store the logits."""
    scores = logits[0] if isinstance(logits, tuple) else logits
    probabilities = scores.softmax(dim=-1).amax(dim=-1)
    return scores.argmax(dim=-1), probabilities


def distillation_metrics(evaluation: EvalPrediction) -> dict[str, float]:
    """Metrics of a student beside its teacher.

    The `predictions` and `label_ids` of an evaluation are the numerators and denominators of each quantity, by its
    name, `[examples]` or `[examples, states]`; a quantity is their quotient after summation over a whole split. The
    mean over states is `relative_error` (0.01 is 1 %), each of them `relative_error_<index>`. Perplexities are powers
    of e, from the losses of the next tokens.
    """
    metrics = {}
    for name, numerators in evaluation.predictions.items():
        denominators = evaluation.label_ids[name].sum(0, dtype=np.float64)
        quotient = numerators.sum(0, dtype=np.float64) / denominators
        if name.endswith("perplexity"):
            quotient = np.exp(quotient)
        metrics[name] = quotient.mean()
        if quotient.ndim:  # of several states
            metrics |= {f"{name}_{index}": error for index, error in enumerate(quotient)}
    return metrics
