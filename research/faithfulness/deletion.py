"""A classifier's probabilities when the tokens ranked first by an explanation are deleted, or the only ones left."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.forward import attends_between_tokens, forward_pass, keep_mask_of, prepared_inputs, read_position
from hf_bidir.explain.inputs.image import leading_tokens, patch_grid, patch_size
from research.faithfulness.interventions import class_probabilities

ROWS = 64  # inputs that run together
ERASER_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # DeYoung et al. 2020, section 5.2


def comprehensiveness(model: PreTrainedModel, inputs: Mapping[str, Tensor], scores: Tensor) -> Tensor:
    """Fall of the predicted probability without the tokens ranked first; higher is better.

    ERASER (DeYoung et al. 2020, equation 1), the mean over shares of tokens. Arguments and errors as in
    `prediction_curve`; the result is `[batch]`, in [-1, 1].
    """
    whole, *reduced = prediction_curve(model, inputs, scores, [0.0, *ERASER_SHARES], "deletion")
    return whole - torch.stack(reduced).mean(0)


def sufficiency(model: PreTrainedModel, inputs: Mapping[str, Tensor], scores: Tensor) -> Tensor:
    """Fall of the predicted probability when only the tokens ranked first are left; lower is better.

    ERASER (DeYoung et al. 2020, equation 2); otherwise as `comprehensiveness`.
    """
    whole, *reduced = prediction_curve(model, inputs, scores, [1.0, *ERASER_SHARES], "insertion")
    return whole - torch.stack(reduced).mean(0)


@torch.no_grad()
def prediction_curve(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    scores: Tensor,
    shares: Sequence[float],
    how: Literal["deletion", "insertion"] = "deletion",
    special: Tensor | None = None,
) -> Tensor:
    """The probability of the predicted class as tokens are deleted, or inserted, in the order of their scores.

    A word piece is removed from the text; a patch is set to 0, mid-grey for the usual normalisation.

    Args:
        model: a bidir classifier.
        inputs: a batch of model inputs, padded on the right.
        scores: `[batch, length]`, support for the prediction; the highest is ranked first. For images one per token of
            the model, class token included, as `token_scores` computes them.
        shares: shares of the deletable tokens, each in [0, 1]; rounded up, so any share above 0 is at least one token.
        how: "deletion" deletes that share, "insertion" keeps only that share and the special tokens.
        special: boolean `[batch, length]`, tokens that are never deleted; by default the token that the output is read
            from and those before an image's patches. For pooling models the token ranked first stays.

    Returns:
        `[shares, batch]`. With shares from 0 to 1 in equal steps, `area(…)` is the area under the curve.

    Raises:
        ValueError: a model without classes.
    """
    inputs = prepared_inputs(model, inputs)
    with in_evaluation(model):
        predicted = class_probabilities(model, inputs).argmax(-1)
        keep = keep_mask_of(inputs, scores.shape[-1])
        scores = scores.to(keep.device)
        special = special_tokens(model, inputs, keep) if special is None else special.to(keep.device)
        rank, count = ranks(scores, keep & ~special)
        removed = torch.cat([_leave_one(_removed(rank, count, share, how), keep, rank) for share in shares])
        examples = torch.arange(len(keep), device=keep.device).repeat(len(shares))
        curve = []
        for rows, missing in zip(examples.split(ROWS), removed.split(ROWS), strict=True):
            batch = {name: value[rows] for name, value in inputs.items()}
            reduced = without_tokens(model, batch, keep[rows], missing)
            curve.append(class_probabilities(model, reduced).gather(1, predicted[rows, None]).squeeze(1))
    return torch.cat(curve).view(len(shares), -1)


def _removed(rank: Tensor, count: Tensor, share: float, how: str) -> Tensor:
    """The tokens that are missing at a share, boolean `[batch, length]`."""
    # minus 1e-9, so that rounding errors do not turn 0.3 of 50 into 16
    chosen = rank < (share * count.double() - 1e-9).ceil().unsqueeze(1)
    return chosen if how == "deletion" else (rank < count.unsqueeze(1)) & ~chosen


def area(curve: Tensor) -> Tensor:
    """The area under a curve `[shares, batch]` with equal steps from 0 to 1 (Petsiuk et al. 2018), `[batch]`.

    Lower is better for deletion, higher for insertion.
    """
    return torch.trapezoid(curve, dim=0) / (len(curve) - 1)


def ranks(scores: Tensor, deletable: Tensor) -> tuple[Tensor, Tensor]:
    """Rank of every token from 0, infinite for tokens that cannot be deleted, and the number of ranks per example."""
    order = scores.double().masked_fill(~deletable, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    # double precision, because bf16 cannot represent 257
    positions = torch.arange(scores.shape[-1], dtype=torch.double, device=scores.device).expand_as(order)
    rank = torch.empty_like(positions).scatter(-1, order, positions)
    return rank.masked_fill(~deletable, torch.inf), deletable.sum(-1)


def special_tokens(model: PreTrainedModel, inputs: Mapping[str, Tensor], keep: Tensor) -> Tensor:
    """The token that the output is read from and those before an image's patches, boolean `[batch, length]`."""
    if "pixel_values" in inputs:
        return before_patches(model, inputs["pixel_values"], keep.shape[1]).to(keep.device)
    if not attends_between_tokens(model):
        return torch.zeros_like(keep)
    read = read_position(forward_pass(model, inputs).coefficients[-1], keep)
    return torch.arange(keep.shape[1], device=keep.device) == read.unsqueeze(1)


def before_patches(model: PreTrainedModel, pixels: Tensor, length: int) -> Tensor:
    """The tokens before an image's patches, boolean `[batch, length]`."""
    return (torch.arange(length) < leading_tokens(model, pixels, length)).expand(len(pixels), -1)


def _leave_one(removed: Tensor, keep: Tensor, rank: Tensor) -> Tensor:
    """Keep the token ranked first if nothing else would be left of a text."""
    nothing = (keep & ~removed).sum(-1, keepdim=True) == 0
    return removed & ~(nothing & (rank == 0))


def without_tokens(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], keep: Tensor, removed: Tensor, replacement: int | None = None
) -> dict[str, Tensor]:
    """The inputs without the removed tokens, boolean `[batch, length]`.

    A patch is set to 0; a word piece is deleted, or replaced by the token with the id `replacement`.
    """
    if "pixel_values" in inputs:
        return _painted(model, inputs, removed)
    if replacement is not None:
        return {**inputs, "input_ids": inputs["input_ids"].masked_fill(removed, replacement)}
    return _shortened(inputs, keep, removed, getattr(model.config.get_text_config(), "pad_token_id", None))


def _shortened(inputs: Mapping[str, Tensor], keep: Tensor, removed: Tensor, padding: int | None) -> dict[str, Tensor]:
    """The texts without the removed tokens, padded on the right."""
    remaining = keep & ~removed
    order = (~remaining).long().argsort(dim=-1, stable=True)  # remaining tokens first, in order
    moved = {name: value.gather(1, order) for name, value in inputs.items() if name != "position_ids"}
    mask = torch.arange(keep.shape[1], device=keep.device) < remaining.sum(-1, keepdim=True)
    if padding is not None:  # some models find the end of a text by the padding token, not by the mask
        moved["input_ids"] = moved["input_ids"].masked_fill(~mask, padding)
    longest = int(remaining.sum(-1).max())
    return {name: value[:, :longest] for name, value in (moved | {"attention_mask": mask.long()}).items()}


def _painted(model: PreTrainedModel, inputs: Mapping[str, Tensor], removed: Tensor) -> dict[str, Tensor]:
    """The images with the removed patches set to 0."""
    pixels = inputs["pixel_values"]
    (rows, columns), (height, width) = patch_grid(model, pixels), patch_size(model)
    patches = removed[:, -rows * columns :].unflatten(1, (rows, columns))
    patches = patches.repeat_interleave(height, 1).repeat_interleave(width, 2)
    pixels_removed = torch.zeros(pixels.shape[0], *pixels.shape[2:], dtype=torch.bool, device=pixels.device)
    pixels_removed[:, : patches.shape[1], : patches.shape[2]] = patches
    return {**inputs, "pixel_values": pixels.masked_fill(pixels_removed[:, None], 0)}
