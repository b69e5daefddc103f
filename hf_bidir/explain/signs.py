"""How much of a model's attention is negative, and what the model is without that part."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.explain.running import attends_between_tokens


@torch.inference_mode()
def negative_share(
    model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], threshold: float = 1e-3
) -> float | None:
    """The share of negative coefficients among those whose size is over `threshold`, in [0, 1].

    Counted together over all layers, heads and queries that are not padding. Which sign a head uses for what has no
    meaning by itself (a gauge freedom at `λ = 1`); that it uses both has.

    Args:
        model: a bidir model, in evaluation mode.
        batches: what the model takes, on its device.

    Returns:
        None where there is no coefficient over the threshold, as in a model that was hardly trained.
    """
    negative = counted = 0

    def count(coefficients: Tensor) -> Tensor:
        nonlocal negative, counted
        rows = coefficients.movedim(2, 1)
        padded = keep is not None and keep.shape == rows.shape[:2]
        queries = rows[keep.bool()] if padded and attends_between_tokens(model) else rows
        large = queries.abs() > threshold
        counted += int(large.sum())
        negative += int((large & (queries < 0)).sum())
        return coefficients

    with edited_coefficients(model, count):
        for batch in batches:
            keep = batch.get("attention_mask")
            model(**batch)
    return negative / counted if counted else None


def without_negatives(model: PreTrainedModel) -> AbstractContextManager[None]:
    """While the context lasts, negative coefficients are 0; the others stay as they are and are not rescaled."""
    return edited_coefficients(model, lambda coefficients: coefficients.clamp_min(0))
