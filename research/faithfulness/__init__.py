"""Faithfulness of explanations to the model, and agreement with people: functions, and `evaluate` metrics of them."""

from research.faithfulness.agreement import bootstrap_interval, kendall_tau, kept_rows, rationale_auprc, sign_agreement
from research.faithfulness.deletion import ERASER_SHARES, area, comprehensiveness, prediction_curve, sufficiency
from research.faithfulness.interventions import (
    class_probabilities,
    permuted,
    prediction_changes,
    randomised,
    randomised_stages,
    total_variation,
)
from research.faithfulness.masked_fidelity import f_fidelity, tuned_on_masks
from research.faithfulness.metrics import (
    Comprehensiveness,
    KendallTau,
    PredictionChange,
    RationaleAuprc,
    SignAgreement,
    Sufficiency,
)

__all__ = [
    "ERASER_SHARES",
    "Comprehensiveness",
    "KendallTau",
    "PredictionChange",
    "RationaleAuprc",
    "SignAgreement",
    "Sufficiency",
    "area",
    "bootstrap_interval",
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
    "rationale_auprc",
    "sign_agreement",
    "sufficiency",
    "total_variation",
    "tuned_on_masks",
]
