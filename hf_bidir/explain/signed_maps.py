"""Readers of the coefficients and values of a layer, also of one that subtracts two maps.

Differential attention (Ye et al. 2025, "Differential Transformer") has the signed map `A₁ - λ A₂`: DiffLlama subtracts
two softmax maps, of the first and the second half of the heads, after its attention function. Here their difference is
put into the forward pass, so that methods read it, and gradients with respect to it, like the coefficients of a signed
layer.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

DIFFERENTIAL = "DiffLlamaAttention"
Values = list[tuple[nn.Module, Tensor]]


@dataclass
class Reader:
    """Adds the coefficients and the values of each run of a layer to two lists."""

    layer: nn.Module
    coefficients: list[Tensor]
    values: Values

    def edit(self, coefficients: Tensor) -> Tensor:
        """Changes nothing, but lets gradients flow to the coefficients."""
        if torch.is_grad_enabled() and not coefficients.requires_grad:
            coefficients.requires_grad_()
        self.coefficients.append(coefficients)
        return coefficients

    def observe(self, layer: nn.Module, key: Tensor, value: Tensor, context: Tensor) -> None:
        self.values.append((layer, value.detach()))


@dataclass
class DifferentialReader(Reader):
    """Adds the map of each run of a layer, `[batch, heads / 2, queries, keys]`, and the values that it multiplies.

    A layer calls its attention function once in a run, or twice with the same coefficients and one half of the values
    each.
    """

    parts: list[Tensor] = field(default_factory=list)  # values of the calls of the run
    rebuilt: Tensor = field(init=False)  # set by the first call

    def edit(self, coefficients: Tensor) -> Tensor:
        """The coefficients, made of the map, so that `y` depends on it."""
        if not self.parts:
            added, subtracted = coefficients.chunk(2, dim=1)
            weighted = _weight(self.layer).to(subtracted.dtype) * subtracted
            signed_map = super().edit(added - weighted.detach())
            # the value of `added`, unrounded, and the gradient of the map
            gradient = signed_map - signed_map.detach()  # 0
            self.rebuilt = torch.cat([added.detach() + gradient, subtracted], dim=1)
        return self.rebuilt

    def observe(self, layer: nn.Module, key: Tensor, value: Tensor, context: Tensor) -> None:
        self.parts.append(value.chunk(2, dim=1)[0])
        joined = torch.cat(self.parts, dim=-1)
        if joined.shape[-1] == 2 * self.layer.head_dim:
            self.parts = []
            super().observe(layer, key, joined, context)


def reader_of(layer: nn.Module, coefficients: list[Tensor], values: Values) -> Reader:
    """The reader of a layer, which adds to these lists."""
    kind = DifferentialReader if type(layer).__name__ == DIFFERENTIAL else Reader
    return kind(layer, coefficients, values)


def _weight(layer: Any) -> Tensor:
    """The `λ` of a layer: equation 2 of the paper."""
    first = (layer.lambda_q1 * layer.lambda_k1).sum().exp()
    second = (layer.lambda_q2 * layer.lambda_k2).sum().exp()
    return first - second + layer.lambda_init
