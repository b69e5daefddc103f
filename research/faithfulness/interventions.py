"""Change of a prediction when coefficients are permuted or drawn at random (Jain and Wallace 2019; Huang et al. 2024).

If the prediction does not change, the coefficients do not explain it. Likewise explanations should change when the
weights are randomised (Adebayo et al. 2018).
"""

import copy
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_coefficients, in_evaluation
from hf_bidir.explain.forward import keep_mask_of, prepared_inputs
from hf_bidir.modeling.activations import upcast
from hf_bidir.modeling.signed_layers import signed_layers


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """`½ Σ_c |p_c - q_c|` over all classes, in [0, 1]; `[..., classes]` to `[...]`."""
    return 0.5 * (first - second).abs().sum(-1)


Change = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def permuted(coefficients: Tensor, keep: Tensor, generator: torch.Generator) -> Tensor:
    """Permute the coefficients of every query, leaving padding in place.

    Args:
        coefficients: `[batch, heads, queries, keys]`.
        keep: boolean, expandable to that shape; False for keys that stay in place.
        generator: on the device of the coefficients.
    """
    keep = keep.expand_as(coefficients)
    draw = torch.rand(coefficients.shape, generator=generator, device=coefficients.device)
    # kept keys sort first, in random order; the others sort last, in their own order
    last = torch.arange(coefficients.shape[-1], device=coefficients.device) + 1.0
    drawn = torch.where(keep, draw, last).argsort(-1)
    places = torch.where(keep, 0.0, last).argsort(dim=-1, stable=True)
    return torch.empty_like(coefficients).scatter(-1, places, coefficients.gather(-1, drawn))


def randomised(coefficients: Tensor, keep: Tensor, generator: torch.Generator) -> Tensor:
    """Draw random coefficients with the same rule for every activation.

    Magnitudes are uniform over all with the query's sum of magnitudes (a flat Dirichlet); signs are the query's own in
    random order. For softmax this draws weights uniformly from the simplex.

    Arguments as in `permuted`.
    """
    keep = keep.expand_as(coefficients)
    draw = torch.rand(coefficients.shape, generator=generator, device=coefficients.device)
    exponential = -torch.log1p(-draw)  # exponential variables divided by their sum are a flat Dirichlet
    exponential = exponential.masked_fill(~keep, 0)
    magnitudes = exponential / exponential.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    total = coefficients.abs().sum(-1, keepdim=True)
    signs = torch.where(coefficients < 0, -1.0, 1.0).to(coefficients.dtype)
    return permuted(signs, keep, generator) * (magnitudes * total).to(coefficients.dtype)


@torch.no_grad()
def prediction_changes(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    change: Change,
    draws: int = 100,
    seed: int = 0,
) -> Tensor:
    """Change of a classifier's probabilities when the coefficients of every layer are changed.

    Args:
        model: a bidir model for sequence or image classification.
        inputs: a batch of model inputs.
        change: `permuted` or `randomised`.
        draws: number of random draws, each one forward pass.

    Returns:
        `[draws, batch]`: total variation between the class probabilities, in [0, 1].

    Raises:
        ValueError: a model without classes, and as in `hf_bidir.explain.contributions`.
    """
    inputs = prepared_inputs(model, inputs)
    generator = torch.Generator(device=model.device).manual_seed(seed)

    def changed(coefficients: Tensor) -> Tensor:
        keep = keep_mask_of(inputs, coefficients.shape[-1])[:, None, None]
        # a key masked for a query, by causality or a window, has coefficient 0 in every head
        return change(coefficients, keep & (coefficients != 0).any(1, keepdim=True), generator)

    with in_evaluation(model):
        before, variations = class_probabilities(model, inputs), []
        for _ in range(draws):
            with edited_coefficients(model, changed):
                variations.append(total_variation(class_probabilities(model, inputs), before))
    return torch.stack(variations)


def class_probabilities(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """Class probabilities `[batch, classes]`, in at least fp32.

    Raises:
        ValueError: the model is not a classifier of whole inputs.
    """
    outputs = model(**inputs, return_dict=True)
    if "logits" not in outputs or outputs.logits.dim() != 2:
        raise ValueError(f"expected a classifier of whole inputs, got {type(model).__name__}.")
    return upcast(outputs.logits).softmax(-1)


def randomised_stages(model: PreTrainedModel, seed: int = 0) -> Iterator[tuple[str, PreTrainedModel]]:
    """Randomise the weights of a copy from the top down (Adebayo et al. 2018, "cascading randomization").

    Every weight is drawn from a normal distribution with its own mean and standard deviation, so that hidden states
    keep their scale. Yields the name of the part that was randomised last ("head", the blocks from the last to the
    first, "block 5" for example, then "embeddings"), and the copy, in which all parts so far are random.
    """
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    parts, seen = blocks(model), set()
    inside = {id(weight) for block in parts for weight in block.parameters()}
    outside = [(name, weight) for name, weight in model.named_parameters() if id(weight) not in inside]
    embeddings = [weight for name, weight in outside if _is_embedding(name)]
    head = [weight for name, weight in outside if not _is_embedding(name)]
    stages: list[tuple[str, list[nn.Parameter]]] = [("head", head)]
    stages += [(f"block {index}", list(block.parameters())) for index, block in reversed(list(enumerate(parts)))]
    for name, weights in [*stages, ("embeddings", embeddings)]:
        for weight in weights:
            if id(weight) not in seen:
                _randomise(weight, generator)
                seen.add(id(weight))
        yield name, model


def _is_embedding(name: str) -> bool:
    return any(part in name for part in ("embed", "wte", "wpe", "cls_token", "register_tokens"))


@torch.no_grad()
def _randomise(weight: Tensor, generator: torch.Generator) -> None:
    spread = weight.float().std(correction=0)
    drawn = weight.float().mean().cpu() + spread.cpu() * torch.randn(weight.shape, generator=generator)
    weight.copy_(drawn)


def blocks(model: PreTrainedModel) -> list[nn.Module]:
    """For each signed layer the largest entry of a module list with it alone, or the smallest one with several."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    inside = {entry: set(entry.modules()) for entries in lists for entry in entries}
    layers, around = signed_layers(model), {}
    for layer in layers:
        holding = [entry for entry, parts in inside.items() if entry is not layer and layer in parts]
        if not holding:
            raise ValueError(
                f"expected attention layers inside a list of blocks; the {type(layer).__name__} of "
                f"{type(model).__name__} is not. Use a method that needs no blocks, such as contributions."
            )
        alone = [entry for entry in holding if sum(other in inside[entry] for other in layers) == 1]
        largest, some = (max, alone) if alone else (min, holding)
        around[largest(some, key=lambda entry: len(inside[entry]))] = layer
    return list(around)
