"""What a classifier answers when the tokens that an explanation ranks first are taken away, or are all that is left."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.attentions import read_position
from hf_bidir.explain.running import (
    attends_between_tokens,
    keep_mask_of,
    leading_tokens,
    patch_grid,
    patch_size,
    prepared_inputs,
    record_coefficients,
)
from hf_bidir.faithfulness.interventions import class_probabilities

ERASER_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # DeYoung et al. 2020, section 5.2


def comprehensiveness(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    scores: Tensor,
    target: Tensor | None = None,
    *,
    special: Tensor | None = None,
    progress: bool = True,
) -> Tensor:
    """How much the probability of the answer falls without the tokens ranked first; high is good.

    ERASER (DeYoung et al. 2020, equation 1), the mean over shares of tokens. Arguments and errors as in
    `answer_curve`; the result is `[batch]`, in [-1, 1].
    """
    options = {"target": target, "special": special, "progress": progress}
    whole, *reduced = answer_curve(model, inputs, scores, [0.0, *ERASER_SHARES], "deletion", **options)
    return whole - torch.stack(reduced).mean(0)


def sufficiency(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    scores: Tensor,
    target: Tensor | None = None,
    *,
    special: Tensor | None = None,
    progress: bool = True,
) -> Tensor:
    """How much it falls when the tokens ranked first are all that is left; low is good (equation 2; as above)."""
    options = {"target": target, "special": special, "progress": progress}
    whole, *reduced = answer_curve(model, inputs, scores, [1.0, *ERASER_SHARES], "insertion", **options)
    return whole - torch.stack(reduced).mean(0)


@torch.no_grad()
def answer_curve(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    scores: Tensor,
    shares: Sequence[float],
    how: Literal["deletion", "insertion"] = "deletion",
    *,
    target: Tensor | None = None,
    special: Tensor | None = None,
    progress: bool = True,
) -> Tensor:
    """The probability of the answer as tokens disappear, or appear, in the order of their scores.

    A word is deleted and the text closes up; a patch is painted with 0, the mean colour after normalisation.

    Args:
        model: a bidir classifier.
        inputs: what it takes, a batch; padding on the right.
        scores: `[batch, length]`, of what speaks for the answer; the highest comes first. For images one per token of
            the model, class token included, as `contributions(...).sum((1, 2))`.
        shares: of the tokens that can be deleted, each in [0, 1]; rounded up, so above 0 it is at least one token.
        how: "deletion" takes that share away, "insertion" leaves it alone with the special tokens.
        target: `[batch]`, the class whose probability it is; by default the one predicted for the whole input.
        special: boolean `[batch, length]`, tokens that always stay; by default the token that the answer is read from
            and what stands before an image's patches. Where all tokens are read alike, the best one stays.
        progress: show a progress bar.

    Returns:
        `[shares, batch]`.

    Raises:
        ValueError: shares outside [0, 1], an unknown `how`, scores of another shape or not finite, a model without
            classes.
    """
    if how not in ("deletion", "insertion") or not all(0 <= share <= 1 for share in shares):
        raise ValueError(f'expected how "deletion" or "insertion" and shares in [0, 1], got {how!r} and {shares}.')
    inputs = prepared_inputs(model, inputs)
    with in_evaluation(model):
        answers = class_probabilities(model, inputs)
        keep = keep_mask_of(inputs, scores.shape[-1])
        if scores.shape != keep.shape:
            raise ValueError(f"expected scores [batch, length] = {tuple(keep.shape)}, got {tuple(scores.shape)}.")
        scores = scores.to(keep.device)
        if not scores[keep].isfinite().all():
            raise ValueError("expected finite scores of all tokens, got some that are NaN or infinite.")
        target = answers.argmax(-1) if target is None else target.to(answers.device)
        special = _special(model, inputs, keep) if special is None else special.to(keep.device)
        rank, count = _ranks(scores, keep & ~special)
        rows = []
        for share in tqdm(shares, desc=how, unit="share", leave=False, delay=1, disable=not progress):
            # in double precision and a little less, since 0.3 of 50 is 15 and not a little more
            wanted = (share * count.double() - 1e-9).ceil().unsqueeze(1)
            chosen = rank < wanted  # tokens that cannot be deleted are in no rank
            removed = chosen if how == "deletion" else (rank < count.unsqueeze(1)) & ~chosen
            removed = _leave_one(removed, keep, rank)
            reduced = (
                _painted(model, inputs, removed)
                if "pixel_values" in inputs
                else _shortened(inputs, keep, removed, getattr(model.config.get_text_config(), "pad_token_id", None))
            )
            rows.append(class_probabilities(model, reduced).gather(1, target[:, None]).squeeze(1))
    return torch.stack(rows)


def _ranks(scores: Tensor, deletable: Tensor) -> tuple[Tensor, Tensor]:
    """The rank of every token from 0 on, infinite for those that stay, and how many there are in each example."""
    order = scores.double().masked_fill(~deletable, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    # in double precision, where every rank is exact: bf16 has no 257
    positions = torch.arange(scores.shape[-1], dtype=torch.double, device=scores.device).expand_as(order)
    rank = torch.empty_like(positions).scatter(-1, order, positions)
    return rank.masked_fill(~deletable, torch.inf), deletable.sum(-1)


def _special(model: PreTrainedModel, inputs: Mapping[str, Tensor], keep: Tensor) -> Tensor:
    if "pixel_values" in inputs:
        return before_patches(model, inputs["pixel_values"], keep.shape[1]).to(keep.device)
    if not attends_between_tokens(model):
        return torch.zeros_like(keep)
    read = read_position(record_coefficients(model, inputs)[1][-1], keep)
    return torch.arange(keep.shape[1], device=keep.device) == read.unsqueeze(1)


def before_patches(model: PreTrainedModel, pixels: Tensor, length: int) -> Tensor:
    """Which of `length` tokens stand before an image's patches, boolean `[batch, length]`."""
    return (torch.arange(length) < leading_tokens(model, pixels, length)).expand(len(pixels), -1)


def _leave_one(removed: Tensor, keep: Tensor, rank: Tensor) -> Tensor:
    """The same, but for the best token of a text of which nothing would be left."""
    nothing = (keep & ~removed).sum(-1, keepdim=True) == 0
    return removed & ~(nothing & (rank == 0))


def _shortened(inputs: Mapping[str, Tensor], keep: Tensor, removed: Tensor, padding: int | None) -> dict[str, Tensor]:
    """The texts without the tokens, closed up, padded on the right."""
    remaining = keep & ~removed
    order = (~remaining).long().argsort(dim=-1, stable=True)  # what stays, in its order, then what goes
    moved = {name: value.gather(1, order) for name, value in inputs.items() if name != "position_ids"}
    mask = torch.arange(keep.shape[1], device=keep.device) < remaining.sum(-1, keepdim=True)
    if padding is not None:  # some models find the end of a text by it, whatever the mask says
        moved["input_ids"] = moved["input_ids"].masked_fill(~mask, padding)
    longest = int(remaining.sum(-1).max())
    return {name: value[:, :longest] for name, value in (moved | {"attention_mask": mask.long()}).items()}


def _painted(model: PreTrainedModel, inputs: Mapping[str, Tensor], removed: Tensor) -> dict[str, Tensor]:
    """The images with these patches at 0."""
    pixels = inputs["pixel_values"]
    (rows, columns), (height, width) = patch_grid(model, pixels), patch_size(model)
    gone = removed[:, -rows * columns :].unflatten(1, (rows, columns))
    gone = gone.repeat_interleave(height, 1).repeat_interleave(width, 2)
    canvas = torch.zeros(pixels.shape[0], *pixels.shape[2:], dtype=torch.bool, device=pixels.device)
    canvas[:, : gone.shape[1], : gone.shape[2]] = gone
    return {**inputs, "pixel_values": pixels.masked_fill(canvas[:, None], 0)}
