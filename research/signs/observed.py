"""What all readings share: one forward pass, layer by layer, and shares with their intervals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import bootstrap
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.layer_hooks import observed_layers
from hf_bidir.checkpoints.linear_maps import weight_of
from hf_bidir.checkpoints.projections import projections
from hf_bidir.explain.forward import forward_pass

RESAMPLES = 2000
VIGINTILES = torch.linspace(0.05, 0.95, 19)  # thresholds to choose from


@dataclass(frozen=True)
class Layer:
    """One attention layer at one text.

    Attributes:
        coefficients: `[heads, queries, keys]`.
        values: `[heads, keys, head_dim]`.
        context: `[heads, queries, head_dim]`, `coefficients @ values`.
        gradient: of the explained number by the context, of its shape; None without such a number.
    """

    coefficients: Tensor
    values: Tensor
    context: Tensor
    gradient: Tensor | None = None


def layers_of(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], explained: Callable[[ModelOutput], Tensor] | None = None
) -> tuple[ModelOutput, list[Layer]]:
    """The outputs and the layers of a model at one text; `explained` gives the number whose gradient is wanted."""
    seen: list[tuple[Tensor, Tensor]] = []

    def observe(layer: object, key: Tensor, value: Tensor, context: Tensor) -> None:
        seen.append((value, context))

    with torch.set_grad_enabled(explained is not None), observed_layers(model, observe):
        outputs, coefficients, _ = forward_pass(model, inputs)
        gradients: Sequence[Tensor | None] = [None] * len(seen)
        if explained is not None:
            gradients = torch.autograd.grad(explained(outputs), [context for _, context in seen])
    return outputs, [
        Layer(
            a[0].detach(),
            value[0].detach().repeat_interleave(a.shape[1] // value.shape[1], 0),
            context[0].detach().transpose(0, 1),
            None if gradient is None else gradient[0].transpose(0, 1),
        )
        for a, (value, context), gradient in zip(coefficients, seen, gradients, strict=True)
    ]


def output_maps(model: PreTrainedModel, heads: int) -> list[Tensor]:
    """The part of `W_o` that each head's context is multiplied by, `[heads, head_dim, hidden]`, of every layer."""
    return [weight_of(projection.output).detach().T.unflatten(0, (heads, -1)) for projection in projections(model)]


def share(parts: Tensor, wholes: Tensor | None = None) -> dict[str, float]:
    """`Σ parts / Σ wholes` over texts, or the mean of parts, with its 95 % interval and the number of texts."""
    wholes = torch.ones_like(parts, dtype=torch.double) if wholes is None else wholes
    columns = tuple(x.double().numpy() for x in (parts, wholes))

    def of(above, below, axis):
        return above.sum(axis) / below.sum(axis)

    bounds = bootstrap(
        columns, of, paired=True, vectorized=True, n_resamples=RESAMPLES, method="percentile", rng=0, batch=200
    ).confidence_interval
    return {"value": of(*columns, 0), "low": bounds.low, "high": bounds.high, "texts": len(parts)}
