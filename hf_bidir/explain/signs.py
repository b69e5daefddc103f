"""Share of negative coefficients, and a model run without them, or without as much positive mass."""

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
    """The share of negative coefficients among those of magnitude over `threshold`, in [0, 1].

    Counts all layers, heads and queries except padding. At `λ = 1` the overall sign of a head is arbitrary, but whether
    it uses both signs is not.

    Args:
        model: a bidir model, in evaluation mode.
        batches: model inputs, on its device.

    Returns:
        None if no coefficient exceeds the threshold, as in an almost untrained model.
    """
    negative = counted = 0

    def count(coefficients: Tensor) -> Tensor:
        nonlocal negative, counted
        rows = coefficients.movedim(2, 1)
        if keep is not None and keep.shape == rows.shape[:2] and attends_between_tokens(model):
            rows = rows[keep.bool()]
        large = rows.abs() > threshold
        counted += int(large.sum())
        negative += int((large & (rows < 0)).sum())
        return coefficients

    with edited_coefficients(model, count):
        for batch in batches:
            keep = batch.get("attention_mask")
            model(**batch)
    return negative / counted if counted else None


def without_negatives(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Context in which negative coefficients are 0; the others are not rescaled."""
    return edited_coefficients(model, lambda coefficients: coefficients.clamp_min(0))


def without_as_much_positive(model: PreTrainedModel, seed: int = 0) -> AbstractContextManager[None]:
    """Context in which each query loses as much positive mass as it has negative mass, from keys in a random order.

    The control for `without_negatives`: a model that depends on its negative coefficients loses more without them. The
    last coefficient that is reached keeps what remains of it; a query with more negative than positive mass loses all
    of the latter.
    """
    generator = torch.Generator().manual_seed(seed)

    def reduced(coefficients: Tensor) -> Tensor:
        order = torch.rand(coefficients.shape, generator=generator).to(coefficients.device).argsort(-1)
        positive = coefficients.clamp_min(0).gather(-1, order)
        to_remove = coefficients.clamp_max(0).sum(-1, keepdim=True).neg()
        removed = torch.minimum((to_remove - positive.cumsum(-1) + positive).clamp_min(0), positive)
        return coefficients - torch.zeros_like(coefficients).scatter(-1, order, removed)

    return edited_coefficients(model, reduced)
