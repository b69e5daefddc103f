"""Search for a different attention with the same prediction (Jain and Wallace 2019)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_coefficients, in_evaluation
from hf_bidir.explain.forward import attends_between_tokens, keep_mask_of, prepared_inputs, record_coefficients
from hf_bidir.modeling.signed_layers import signed_layers
from research.faithfulness.interventions import class_probabilities, jensen_shannon, total_variation

PENALTY = 500.0  # weight of the change of the prediction beyond the tolerance


@dataclass(frozen=True)
class Adversary:
    """The most divergent attention found whose prediction is within the tolerance.

    Attributes:
        divergence: `[batch]`, Jensen-Shannon divergence from the model's own |a|, in [0, ln 2]; 0 if none was found.
        change: `[batch]`, total variation between the class probabilities.
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
    """Search attention scores with divergent coefficients, by the model's activation, and the same prediction.

    Args:
        model: a bidir classifier with one attention layer and one query, such as `BidirRnnForSequenceClassification`.
        inputs: a batch of model inputs.
        tolerance: total variation of class probabilities up to which predictions count as the same, in [0, 1].
        starts: number of random starts; the best result is returned.
        steps, learning_rate: steps of Adam per start, and its initial rate, which falls to 0.

    Raises:
        ValueError: a model with attention between tokens, a tolerance outside [0, 1], no starts or steps, and
            as in `hf_bidir.explain.contributions`.
    """
    if not 0 <= tolerance <= 1 or starts < 1 or steps < 1:
        raise ValueError(
            f"expected a tolerance in [0, 1], starts and steps of at least 1, got {tolerance}, {starts}, {steps}."
        )
    inputs = prepared_inputs(model, inputs)
    if attends_between_tokens(model):
        raise ValueError(
            f"expected a model with one attention layer and one query, such as BidirRnnForSequenceClassification; "
            f"{type(model).__name__} has attention between tokens."
        )
    generator = torch.Generator(device=model.device).manual_seed(seed)
    (layer,) = signed_layers(model)
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(model):
        with torch.no_grad():
            own, probabilities = record_coefficients(model, inputs)[1][0], class_probabilities(model, inputs)
        keep = keep_mask_of(inputs, own.shape[-1])[:, None, None]
        bar = tqdm(total=starts * (steps + 1), desc="adversaries", leave=False, delay=1, disable=not progress)
        best = Adversary(own.new_zeros(len(own)), own.new_zeros(len(own)), own[:, 0, 0])
        for _ in range(starts):
            scores = torch.randn(own.shape, generator=generator, device=own.device).requires_grad_()
            optimizer = torch.optim.Adam([scores], lr=learning_rate)
            # a falling rate lets the search settle at the edge of the tolerance
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
            for step in range(steps + 1):
                coefficients = layer.activated(scores, keep)
                with edited_coefficients(model, lambda _, changed=coefficients: changed):
                    change = total_variation(class_probabilities(model, inputs), probabilities)
                divergence = jensen_shannon(coefficients[:, 0, 0], own[:, 0, 0])
                allowed = divergence * (change <= tolerance)
                best = _better(best, Adversary(*(one.detach() for one in (allowed, change, coefficients[:, 0, 0]))))
                if step < steps:  # towards more divergence, or back to the prediction
                    loss = PENALTY * (change - tolerance).clamp_min(0) - divergence
                    (scores.grad,) = torch.autograd.grad(loss.sum(), [scores])
                    optimizer.step()
                    schedule.step()
                bar.update()
        bar.close()
    return best


def _better(first: Adversary, second: Adversary) -> Adversary:
    """Choose the more divergent one for each example."""
    farther = second.divergence > first.divergence
    return Adversary(
        torch.where(farther, second.divergence, first.divergence),
        torch.where(farther, second.change, first.change),
        torch.where(farther[:, None], second.coefficients, first.coefficients),
    )
