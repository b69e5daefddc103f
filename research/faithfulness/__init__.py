"""Faithfulness of explanations to the model, and agreement with people."""

from research.faithfulness.agreement import kendall_tau, kept_rows, sign_agreement
from research.faithfulness.deletion import ERASER_SHARES, area, comprehensiveness, prediction_curve, sufficiency
from research.faithfulness.interventions import (
    class_probabilities,
    permuted,
    prediction_changes,
    randomised,
    randomised_stages,
)
from research.faithfulness.masked_fidelity import f_fidelity, tuned_on_masks

__all__ = [
    "ERASER_SHARES",
    "area",
    "class_probabilities",
    "comprehensiveness",
    "f_fidelity",
    "kendall_tau",
    "kept_rows",
    "permuted",
    "prediction_changes",
    "prediction_curve",
    "randomised",
    "randomised_stages",
    "sign_agreement",
    "sufficiency",
    "tuned_on_masks",
]
