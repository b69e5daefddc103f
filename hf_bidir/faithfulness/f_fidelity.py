"""F-Fidelity: how much a model that knows masked inputs changes without part of an explanation."""

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.running import keep_mask_of, prepared_inputs, record_coefficients, sequence_length
from hf_bidir.faithfulness.deletion import ranks, special_tokens, without_tokens
from hf_bidir.faithfulness.interventions import class_probabilities

SIZES = (0.1, 0.2, 0.3, 0.4, 0.5)  # shares of the tokens that count as the explanation
ALPHA, BETA = 0.5, 0.1  # share of a part that is masked, and its limit as a share of all tokens


def tuned_on_masks(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    replacement: int | None = None,
    beta: float = BETA,
    learning_rate: float = 2e-5,
    seed: int = 0,
) -> PreTrainedModel:
    """A copy of a classifier, fine-tuned on inputs of which up to a share `beta` of the tokens is masked at random.

    The explanation-agnostic fine-tuning of F-Fidelity: inputs with a few masked tokens are no longer unlike those of
    training, whatever method chose the tokens.

    Args:
        model: a bidir classifier; it is not changed.
        batches: model inputs with `labels`, once through.
        replacement: the token that masks a word piece; patches are masked with 0.
        learning_rate: of AdamW.
    """
    tuned = copy.deepcopy(model).requires_grad_(True).train()
    optimizer = torch.optim.AdamW(tuned.parameters(), lr=learning_rate)
    generator = torch.Generator().manual_seed(seed)
    for batch in batches:
        labels, inputs = batch["labels"], prepared_inputs(model, batch)
        keep = _keep(model, inputs)
        with in_evaluation(model):
            free = keep & ~special_tokens(model, inputs, keep)
        draw = torch.rand(keep.shape, generator=generator)
        share = beta * torch.rand(len(keep), 1, generator=generator)
        masked = without_tokens(tuned, inputs, keep, free & (draw < share).to(keep.device), replacement)
        loss = torch.nn.functional.cross_entropy(tuned(**masked).logits, labels.to(model.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return tuned.requires_grad_(False).eval()


@torch.no_grad()
def f_fidelity(
    tuned: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    scores: Tensor,
    *,
    target: Tensor,
    replacement: int | None = None,
    sizes: Sequence[float] = SIZES,
    alpha: float = ALPHA,
    beta: float = BETA,
    draws: int = 10,
    seed: int = 0,
    progress: bool = True,
) -> tuple[Tensor, Tensor]:
    """FFid+ and FFid- of scores (Zheng et al. 2024, "F-Fidelity", definition 3), `[batch]` each, in [-1, 1].

    The fall of the target's probability when random tokens are masked: of the explanation, the tokens ranked first
    (FFid+, higher is better), or of all others (FFid-, lower is better). Of a part of n tokens, `min(alpha n, beta N)`
    are masked, N being the number of all tokens, so that no input is masked more than in `tuned_on_masks`.

    Args:
        tuned: from `tuned_on_masks`.
        scores: `[batch, length]`, support for the target.
        target: `[batch]`, class indices.
        sizes: shares of the tokens that count as the explanation; the result is their mean.
        draws: random masks for each size.
    """
    inputs = prepared_inputs(tuned, inputs)
    with in_evaluation(tuned):
        keep = keep_mask_of(inputs, scores.shape[-1])
        rank, count = ranks(scores.to(keep.device), keep & ~special_tokens(tuned, inputs, keep))
        generator = torch.Generator().manual_seed(seed)
        whole = class_probabilities(tuned, inputs).gather(1, target[:, None]).squeeze(1)
        falls: tuple[list[Tensor], list[Tensor]] = ([], [])
        rounds = [size for size in sizes for _ in range(draws)]
        for size in tqdm(rounds, desc="F-Fidelity", unit="mask", leave=False, delay=1, disable=not progress):
            top = rank < (size * count.double() - 1e-9).ceil().unsqueeze(1)
            draw = torch.rand(keep.shape, generator=generator).to(keep.device)
            for part, found in zip((top, rank.isfinite() & ~top), falls, strict=True):
                number = torch.minimum(alpha * part.sum(-1), beta * count).round().clamp_min(1)
                order, _ = ranks(draw, part)
                masked = without_tokens(tuned, inputs, keep, order < number.unsqueeze(1), replacement)
                found.append(whole - class_probabilities(tuned, masked).gather(1, target[:, None]).squeeze(1))
    return torch.stack(falls[0]).mean(0), torch.stack(falls[1]).mean(0)


def _keep(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """The keep-mask of a batch, of images with the length that the model attends over."""
    if "pixel_values" not in inputs:
        return keep_mask_of(inputs, inputs["input_ids"].shape[1])
    with torch.no_grad():
        length = sequence_length(model, inputs, record_coefficients(model, inputs)[1])
    return keep_mask_of(inputs, length)
