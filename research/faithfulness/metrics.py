"""The measures of `research.faithfulness` as metrics of the library `evaluate`, which need no network.

    import evaluate
    tau = evaluate.load("research/faithfulness/metrics.py", "kendall_tau")  # or: KendallTau()
    tau.compute(predictions=[[0.1, 0.7, 0.2]], references=[[0.0, 0.9, 0.3]])

Like any other metric, each takes batches (`add_batch`), processes and caches. It returns the `mean` over examples, the
ends `low` and `high` of its 95 % bootstrap interval, and `examples`, the number of examples where the measure is
defined.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import evaluate
import numpy as np
import torch
from datasets import Features, List, Value

from research.faithfulness.agreement import bootstrap_interval, check_rows, kendall_tau, rationale_auprc, sign_agreement
from research.faithfulness.interventions import total_variation


def prediction_change(after: list, before: list) -> np.ndarray:
    """Total variation between class probabilities after an intervention and before."""
    check_rows(after, before, "probabilities", "probabilities before", "class")
    for index, row in enumerate([*after, *before]):
        if min(row) < 0 or abs(sum(row) - 1) > 1e-3:
            raise ValueError(f"expected class probabilities that sum to 1; got {row} in row {index % len(after)}.")
    return total_variation(torch.tensor(after), torch.tensor(before)).numpy()


def probability_fall(reduced: list, whole: list) -> np.ndarray:
    """Fall of the predicted probability from whole inputs to reduced ones, mean over shares of tokens."""
    return np.array([before - np.mean(after) for after, before in zip(reduced, whole, strict=True)])


ROW, NUMBER = List(Value("float64")), Value("float64")
MEASURES: dict[str, tuple[Callable, Any]] = {  # and the features of the references
    "kendall_tau": (kendall_tau, ROW),
    "prediction_change": (prediction_change, ROW),
    "comprehensiveness": (probability_fall, NUMBER),
    "sufficiency": (probability_fall, NUMBER),
    "rationale_auprc": (rationale_auprc, ROW),
    "sign_agreement": (sign_agreement, ROW),
}


class Faithfulness(evaluate.Metric):
    """Mean of a measure over examples; the name of its configuration is in `MEASURES`."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in MEASURES:
            raise ValueError(f"expected one of {', '.join(MEASURES)}; got {self.config_name!r}.")
        measure, references = MEASURES[self.config_name]
        return evaluate.MetricInfo(
            description=measure.__doc__,
            citation="DeYoung et al. 2020, ERASER; Jain and Wallace 2019, Attention is not Explanation",
            inputs_description=__doc__,
            features=Features({"predictions": ROW, "references": references}),
        )

    def _compute(
        self, predictions: list, references: list, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
    ) -> dict[str, Any]:
        measure, _ = MEASURES[self.config_name]
        values = np.asarray(measure(predictions, references), dtype=float)
        low, high = bootstrap_interval(values, confidence, resamples, seed)
        defined = values[~np.isnan(values)]
        mean = float(defined.mean()) if len(defined) else float("nan")
        return {"mean": mean, "low": low, "high": high, "examples": len(defined)}


KendallTau = partial(Faithfulness, "kendall_tau")
PredictionChange = partial(Faithfulness, "prediction_change")
Comprehensiveness = partial(Faithfulness, "comprehensiveness")
Sufficiency = partial(Faithfulness, "sufficiency")
RationaleAuprc = partial(Faithfulness, "rationale_auprc")
SignAgreement = partial(Faithfulness, "sign_agreement")
