"""Is there quite another attention that gives the same answer (Jain and Wallace 2019)?"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_coefficients, in_evaluation
from hf_bidir.explain.running import attends_between_tokens, keep_mask_of, prepared_inputs, record_coefficients
from hf_bidir.faithfulness.distances import jensen_shannon, total_variation
from hf_bidir.faithfulness.interventions import class_probabilities
from hf_bidir.modeling.signed_layers import signed_layers

PENALTY = 500.0  # for every unit by which an answer moves beyond the tolerance


@dataclass(frozen=True)
class Adversary:
    """The farthest attention found that leaves the answer within the tolerance.

    Attributes:
        divergence: `[batch]`, Jensen-Shannon divergence from the model's own |a|, in [0, ln 2]; 0 where none was found.
        change: `[batch]`, total variation between the answers.
        coefficients: `[batch, keys]`.
    """

    divergence: Tensor
    change: Tensor
    coefficients: Tensor


def adversarial_attention(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    *,
    tolerance: float = 0.01,
    starts: int = 4,
    steps: int = 200,
    learning_rate: float = 0.1,
    seed: int = 0,
    progress: bool = True,
) -> Adversary:
    """Search scores whose coefficients, by the model's own activation, are far from its own and answer the same.

    Args:
        model: a bidir classifier with one attention layer and one query, such as `BidirRnnForSequenceClassification`.
        inputs: what it takes, a batch.
        tolerance: how much total variation of the answer counts as the same, in [0, 1].
        starts: random scores to start from; the best result of all counts.
        steps, learning_rate: of Adam, per start; the rate falls to 0.
        seed: of the starts.
        progress: show a progress bar.

    Raises:
        ValueError: a model whose attention goes from token to token, a tolerance outside [0, 1], no starts or steps,
            and as in `hf_bidir.explain.contributions`.
    """
    if not 0 <= tolerance <= 1 or starts < 1 or steps < 1:
        raise ValueError(
            f"expected a tolerance in [0, 1], starts and steps of at least 1, got {tolerance}, {starts}, {steps}."
        )
    inputs = prepared_inputs(model, inputs)
    if attends_between_tokens(model):
        raise ValueError(
            f"expected a model with one attention layer and one query, such as BidirRnnForSequenceClassification; "
            f"{type(model).__name__} attends from token to token."
        )
    generator = torch.Generator(device=model.device).manual_seed(seed)
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(model):
        with torch.no_grad():
            own = record_coefficients(model, inputs)[1][0]
            search = _Search(model, inputs, own, class_probabilities(model, inputs), tolerance)
        bar = tqdm(total=starts * steps, desc="adversaries", leave=False, delay=1, disable=not progress)
        best = Adversary(own.new_zeros(len(own)), own.new_zeros(len(own)), own[:, 0, 0])
        for _ in range(starts):
            scores = torch.randn(own.shape, generator=generator, device=own.device).requires_grad_()
            optimizer = torch.optim.Adam([scores], lr=learning_rate)
            # smaller and smaller steps, so that the search comes to rest at the edge of the tolerance
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
            for _ in range(steps):
                best = _better(best, search.step(scores, optimizer))
                schedule.step()
                bar.update()
            best = _better(best, search.step(scores, optimizer))  # what the last step led to
        bar.close()
    return best


@dataclass(frozen=True)
class _Search:
    model: PreTrainedModel
    inputs: Mapping[str, Tensor]
    own: Tensor
    answer: Tensor
    tolerance: float

    def step(self, scores: Tensor, optimizer: torch.optim.Optimizer) -> Adversary:
        """What the scores give, before one step that makes them more divergent, or nearer to the answer."""
        keep = keep_mask_of(self.inputs, scores.shape[-1])[:, None, None]
        (layer,) = signed_layers(self.model)
        coefficients = layer.coefficients(scores, keep)
        with edited_coefficients(self.model, lambda _: coefficients):
            change = total_variation(class_probabilities(self.model, self.inputs), self.answer)
        divergence = jensen_shannon(coefficients[:, 0, 0], self.own[:, 0, 0])
        loss = PENALTY * (change - self.tolerance).clamp_min(0) - divergence
        (scores.grad,) = torch.autograd.grad(loss.sum(), [scores])
        optimizer.step()
        allowed = change <= self.tolerance
        return Adversary((divergence * allowed).detach(), change.detach(), coefficients[:, 0, 0].detach())


def _better(first: Adversary, second: Adversary) -> Adversary:
    farther = second.divergence > first.divergence
    return Adversary(
        torch.where(farther, second.divergence, first.divergence),
        torch.where(farther, second.change, first.change),
        torch.where(farther[:, None], second.coefficients, first.coefficients),
    )
