"""F-Fidelity: how much a model that knows masked inputs changes without part of an explanation."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.forward import forward_pass, keep_mask_of, prepared_inputs, sequence_length
from research.faithfulness.deletion import ranks, special_tokens, without_tokens
from research.faithfulness.interventions import class_probabilities

SIZES = (0.1, 0.2, 0.3, 0.4, 0.5)  # shares of the tokens that count as the explanation
ALPHA, BETA = 0.5, 0.1  # share of a part that is masked, and its limit as a share of all tokens
EPSILON = 1e-9  # rounding errors of shares


def tuned_on_masks(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    replacement: int | None = None,
    beta: float = BETA,
    learning_rate: float = 2e-5,
    seed: int = 0,
) -> PreTrainedModel:
    """A copy of a classifier, fine-tuned on inputs of which a share `beta` of the tokens is masked at random.

    The explanation-agnostic fine-tuning of F-Fidelity: inputs with a few masked tokens are no longer unlike those of
    training, whatever method chose the tokens.

    Args:
        model: a bidir classifier; it is not changed.
        batches: model inputs with `labels`, and optionally `special`, boolean `[batch, length]`, tokens that are never
            masked, by default those of `prediction_curve`; once through.
        replacement: the token that masks a word piece; patches are masked with 0.
        beta: the share of masked tokens, rounded down to a number of tokens.
        learning_rate: of AdamW.
        seed: seed of masks and dropout.
    """
    tuned = copy.deepcopy(model).requires_grad_(True).train()
    optimizer = torch.optim.AdamW(tuned.parameters(), lr=learning_rate)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for batch in batches:
            inputs = {name: value for name, value in batch.items() if name not in ("labels", "special")}
            inputs = prepared_inputs(model, inputs)
            keep = _keep(model, inputs)
            free = keep & ~_special(model, inputs, keep, batch.get("special"))
            order, count = ranks(torch.rand(keep.shape).to(keep.device), free)
            masked = without_tokens(tuned, inputs, keep, order < _number(beta * count), replacement)
            loss = torch.nn.functional.cross_entropy(tuned(**masked).logits, batch["labels"].to(model.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return tuned.requires_grad_(False).eval()


@dataclass(frozen=True)
class Masks:
    """How `f_fidelity` masks tokens.

    Attributes:
        replacement: the token that masks a word piece; patches are masked with 0.
        sizes: shares of the tokens that count as the explanation; the result is their mean.
        draws: random masks for each size, which run as one batch.
        alpha, beta: the share of a part that is masked, and its limit as a share of all tokens.
    """

    replacement: int | None = None
    sizes: Sequence[float] = SIZES
    draws: int = 50
    alpha: float = ALPHA
    beta: float = BETA


@torch.no_grad()
def f_fidelity(
    tuned: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    scores: Tensor,
    target: Tensor,
    masks: Masks,
    special: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """FFid+ and FFid- of scores (Zheng et al. 2024, "F-Fidelity"), `[batch]` each, in [-1, 1].

    The fall of the target's probability when random tokens are masked: of the explanation, the tokens ranked first
    (FFid+, higher is better), or of all others (FFid-, lower is better). Of a part of n tokens, `min(alpha n, beta N)`
    rounded down are masked, N being the number of tokens that can be, so that no input is masked more than in
    `tuned_on_masks`. The publication counts correct predictions; the probability changes with every mask.

    Args:
        tuned: from `tuned_on_masks`.
        scores: `[batch, length]`, support for the target.
        target: `[batch]`, class indices.
        special: boolean `[batch, length]`, tokens that are never masked; by default as in `prediction_curve`.

    Returns:
        NaN where no size leaves a token to mask: `beta N` is below 1, or `alpha n` for every size.
    """
    inputs = prepared_inputs(tuned, inputs)
    with in_evaluation(tuned):
        keep, target = keep_mask_of(inputs, scores.shape[-1]), target.to(tuned.device)
        free = keep & ~_special(tuned, inputs, keep, special)
        rank, count = ranks(scores.to(keep.device), free)
        generator = torch.Generator().manual_seed(0)
        whole = class_probabilities(tuned, inputs).gather(1, target[:, None]).squeeze(1)
        rows = torch.arange(len(keep), device=keep.device).repeat(masks.draws)
        repeated = {name: value[rows] for name, value in inputs.items()}
        falls: tuple[list[Tensor], list[Tensor]] = ([], [])
        for size in masks.sizes:
            top = rank < (size * count.double() - EPSILON).ceil().unsqueeze(1)
            for part, parts in zip((top, free & ~top), falls, strict=True):
                number = _number(torch.minimum(masks.alpha * part.sum(-1), masks.beta * count))
                order, _ = ranks(torch.rand(len(rows), keep.shape[1], generator=generator).to(keep.device), part[rows])
                masked = without_tokens(tuned, repeated, keep[rows], order < number[rows], masks.replacement)
                after = class_probabilities(tuned, masked).gather(1, target[rows, None]).view(masks.draws, -1).mean(0)
                parts.append((whole - after).masked_fill(number[:, 0] == 0, torch.nan))
    return torch.stack(falls[0]).nanmean(0), torch.stack(falls[1]).nanmean(0)


def _number(tokens: Tensor) -> Tensor:
    """A number of tokens rounded down, `[batch, 1]`."""
    return (tokens.double() + EPSILON).floor().unsqueeze(1)


@torch.no_grad()
def _special(model: PreTrainedModel, inputs: dict[str, Tensor], keep: Tensor, special: Tensor | None) -> Tensor:
    with in_evaluation(model):
        return special_tokens(model, inputs, keep) if special is None else special.to(keep.device)


def _keep(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """The keep-mask of a batch, of images with the length that the model attends over."""
    if "pixel_values" not in inputs:
        return keep_mask_of(inputs, inputs["input_ids"].shape[1])
    with torch.no_grad():
        length = sequence_length(model, inputs, forward_pass(model, inputs).coefficients)
    return keep_mask_of(inputs, length)
