"""What becomes of an answer when the coefficients are shuffled, or drawn at random (Jain and Wallace 2019; Huang et al.
2024): if nothing, they explain nothing."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_coefficients, in_evaluation
from hf_bidir.explain.running import keep_mask_of, prepared_inputs
from hf_bidir.faithfulness.distances import total_variation

Change = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def permuted(coefficients: Tensor, keep: Tensor, generator: torch.Generator) -> Tensor:
    """The coefficients of every query in random order, padding apart.

    Args:
        coefficients: `[batch, heads, queries, keys]`.
        keep: boolean, of a shape that can be expanded to it; False for keys that stay where they are.
        generator: of the device of the coefficients.
    """
    keep = keep.expand_as(coefficients)
    lottery = torch.rand(coefficients.shape, generator=generator, device=coefficients.device)
    # a key that is kept gets the coefficient of the key that was drawn into its rank; the others come last, in order
    behind = torch.arange(coefficients.shape[-1], device=coefficients.device) + 1.0
    drawn = torch.where(keep, lottery, behind).argsort(-1)
    places = torch.where(keep, 0.0, behind).argsort(dim=-1, stable=True)
    return torch.empty_like(coefficients).scatter(-1, places, coefficients.gather(-1, drawn))


def randomised(coefficients: Tensor, keep: Tensor, generator: torch.Generator) -> Tensor:
    """Random coefficients of one family for every activation.

    Their sizes are uniform over all that have the sum of sizes that the query had (a flat Dirichlet), their signs are
    the query's own in random order. With softmax that is a uniform draw of weights.

    Arguments as in `permuted`.
    """
    keep = keep.expand_as(coefficients)
    lottery = torch.rand(coefficients.shape, generator=generator, device=coefficients.device)
    exponential = -torch.log1p(-lottery)  # of which, divided by their sum, a flat Dirichlet is made
    exponential = exponential.masked_fill(~keep, 0)
    sizes = exponential / exponential.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    total = coefficients.abs().sum(-1, keepdim=True)
    signs = torch.where(coefficients < 0, -1.0, 1.0).to(coefficients.dtype)
    return permuted(signs, keep, generator) * (sizes * total).to(coefficients.dtype)


@torch.no_grad()
def answer_changes(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    change: Change,
    *,
    draws: int = 100,
    seed: int = 0,
    progress: bool = True,
) -> Tensor:
    """How far a classifier's answer moves when every layer's coefficients are changed.

    Args:
        model: a bidir model for sequence or image classification.
        inputs: what it takes, a batch.
        change: `permuted` or `randomised`.
        draws: of random numbers; each is one call of the model.
        seed: of the draws.
        progress: show a progress bar.

    Returns:
        `[draws, batch]`: total variation between the class probabilities, over all classes, in [0, 1].

    Raises:
        ValueError: no draws, a model without classes, and as in `hf_bidir.explain.contributions`.
    """
    if draws < 1:
        raise ValueError(f"expected at least one draw, got {draws}.")
    inputs = prepared_inputs(model, inputs)
    generator = torch.Generator(device=model.device).manual_seed(seed)

    def changed(coefficients: Tensor) -> Tensor:
        keep = keep_mask_of(inputs, coefficients.shape[-1])[:, None, None]
        # a key that a query does not see, as in a decoder or outside a window, has no coefficient in any head
        return change(coefficients, keep & (coefficients != 0).any(1, keepdim=True), generator)

    with in_evaluation(model):
        before, found = class_probabilities(model, inputs), []
        for _ in tqdm(range(draws), desc="draws", leave=False, delay=1, disable=not progress):
            with edited_coefficients(model, changed):
                found.append(total_variation(class_probabilities(model, inputs), before))
    return torch.stack(found)


def class_probabilities(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """`[batch, classes]`, in at least fp32.

    Raises:
        ValueError: the model has no logits of classes.
    """
    outputs = model(**inputs, return_dict=True)
    if "logits" not in outputs or outputs.logits.dim() != 2:
        raise ValueError(f"expected a classifier of whole inputs, got {type(model).__name__}.")
    return outputs.logits.to(torch.promote_types(outputs.logits.dtype, torch.float32)).softmax(-1)
