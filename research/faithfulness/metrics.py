"""The measures of `research.faithfulness` as `evaluate` metrics, which need no network.

    from research.faithfulness import KendallTau
    KendallTau().compute(predictions=[[0.1, 0.7, 0.2]], references=[[0.0, 0.9, 0.3]])

Like any other metric, each takes batches (`add_batch`), processes and caches. It returns the `mean` over examples, the
ends `low` and `high` of its 95 % bootstrap interval, and `examples`, the number of examples where the measure is
defined.
"""

from collections.abc import Callable
from typing import Any

import evaluate
import numpy as np
import torch
from datasets import Features, List, Value

from research.faithfulness.distances import jensen_shannon, total_variation
from research.faithfulness.plausibility import rationale_auprc, sign_agreement
from research.faithfulness.ranking import bootstrap_interval, check_rows, kendall_tau

ROW, NUMBER = List(Value("float64")), Value("float64")
CITATIONS = {
    "jain": "Jain and Wallace 2019, Attention is not Explanation, NAACL",
    "eraser": "DeYoung et al. 2020, ERASER: A Benchmark to Evaluate Rationalized NLP Models, ACL",
    "huang": "Huang, Yang, Wang 2024, Rethinking Attention Weights as Bidirectional Coefficients, J. Data Science",
}


class ExampleMetric(evaluate.Metric):
    """Mean of a measure over examples."""

    description, citation = "", ""
    predictions, references = ROW, ROW
    measure: Callable[[list, list], np.ndarray]

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.description,
            citation=self.citation,
            inputs_description=__doc__,
            features=Features({"predictions": self.predictions, "references": self.references}),
        )

    def _compute(
        self, predictions: list, references: list, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
    ) -> dict[str, Any]:
        values = np.asarray(type(self).measure(predictions, references), dtype=float)
        low, high = bootstrap_interval(values, confidence, resamples, seed)
        defined = values[~np.isnan(values)]
        return {
            "mean": float(defined.mean()) if len(defined) else float("nan"),
            "low": low,
            "high": high,
            "examples": len(defined),
        }


class KendallTau(ExampleMetric):
    """Kendall's tau-b between two scores of the tokens of each example (predictions and references, one row each)."""

    description, citation = "Kendall's tau-b of two scores of the same tokens.", CITATIONS["jain"]
    measure = staticmethod(kendall_tau)


class PredictionChange(ExampleMetric):
    """Total variation between class probabilities after an intervention (predictions) and before (references)."""

    description, citation = "Total variation between two class probabilities.", CITATIONS["jain"]

    @staticmethod
    def measure(after: list, before: list) -> np.ndarray:
        check_rows(after, before, "probabilities", "probabilities before", "class")
        for index, row in enumerate([*after, *before]):
            if min(row) < 0 or abs(sum(row) - 1) > 1e-3:
                raise ValueError(f"expected class probabilities that sum to 1; got {row} in row {index % len(after)}.")
        return total_variation(torch.tensor(after), torch.tensor(before)).numpy()


class AttentionDivergence(ExampleMetric):
    """Jensen-Shannon divergence between the magnitudes of two rows of coefficients."""

    description, citation = "Jensen-Shannon divergence of |a|, normalised, in nats.", CITATIONS["jain"]

    @staticmethod
    def measure(first: list, second: list) -> np.ndarray:
        check_rows(first, second, "coefficients", "other coefficients")
        pairs = zip(first, second, strict=True)
        return np.array([jensen_shannon(torch.tensor(a), torch.tensor(b)).item() for a, b in pairs])


class Comprehensiveness(ExampleMetric):
    """Fall of the predicted probability from the whole input (references) to rows without top tokens (predictions)."""

    description = "Fall of the predicted probability without the tokens ranked first, mean over shares."
    citation, references = CITATIONS["eraser"], NUMBER
    measure = staticmethod(
        lambda without, whole: np.array([p - np.mean(row) for row, p in zip(without, whole, strict=True)])
    )


class Sufficiency(Comprehensiveness):
    """Fall of the predicted probability from the whole input (references) to rows of top tokens alone (predictions)."""

    description = "Fall of the predicted probability when only the tokens ranked first are left, mean over shares."


class RationaleAuprc(ExampleMetric):
    """Area under the precision-recall curve of scores (predictions) against marked words (references, 0 and 1)."""

    description, citation = "Agreement of scores with the words that annotators marked.", CITATIONS["eraser"]
    measure = staticmethod(rationale_auprc)


class SignAgreement(ExampleMetric):
    """Share of polar words (references, signed) whose score (predictions) has the human sign."""

    description, citation = "Share of polar words with the human sign.", CITATIONS["huang"]
    measure = staticmethod(sign_agreement)
