"""The signed map `A₁ - λ A₂` of differential attention (Ye et al. 2025, "Differential Transformer").

DiffLlama subtracts two softmax maps, of the first and the second half of the heads, after its attention function. Here
their difference is put into the forward pass, so that methods read it, and gradients with respect to it, like the
coefficients of a signed layer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from hf_bidir.explain.forward import Reader


class DifferentialReader(Reader):
    """Adds the map of each run of a layer, `[batch, heads / 2, queries, keys]`, and the values that it multiplies.

    A layer calls its attention function once in a run, or twice with the same coefficients and one half of the values
    each.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.parts: list[Tensor] = []  # values of the calls of the run
        self.rebuilt = torch.empty(0)

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


def _weight(layer: Any) -> Tensor:
    """The `λ` of a layer: equation 2 of the paper."""
    first = (layer.lambda_q1 * layer.lambda_k1).sum().exp()
    second = (layer.lambda_q2 * layer.lambda_k2).sum().exp()
    return first - second + layer.lambda_init
