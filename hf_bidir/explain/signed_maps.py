"""The maps of attention layers: coefficients as they are, or the signed map that another project makes of them.

Differential attention computes softmax maps and subtracts them after its attention function. Its adapter puts their
difference into the forward pass, so that methods read it, and gradients with respect to it, like the coefficients of a
signed layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class OwnMap:
    """The coefficients are the map."""

    def split(self, layer: nn.Module, coefficients: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The map `[batch, heads, queries, keys]`, and the function that makes the coefficients of it."""
        return coefficients, lambda own: own

    def values(self, layer: nn.Module, parts: Sequence[Tensor]) -> Tensor | None:
        """What the map is multiplied by, `[batch, key heads, keys, value_dim]`, from the values of the calls in a run;
        None before its last call."""
        return parts[0]


@dataclass(frozen=True)
class Difference(OwnMap):
    """`A₁ - λ A₂`, of the first and the second half of the heads (Ye et al. 2025, "Differential Transformer").

    A run of a layer of `head_dim` calls the attention function once, or twice with the same coefficients and one half
    of the values each.

    Attributes:
        subtracted: the `λ` of a layer, a number or `[heads / 2, 1, 1]`.
    """

    subtracted: Callable[[nn.Module], Tensor]

    def split(self, layer: nn.Module, coefficients: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        toward, away = coefficients.chunk(2, dim=1)
        found = toward - (self.subtracted(layer).to(away.dtype) * away).detach()
        # the sum has the value of `toward`, unrounded, and the gradient of the map
        return found, lambda signed: torch.cat([toward.detach() + (signed - signed.detach()), away], dim=1)

    def values(self, layer: nn.Module, parts: Sequence[Tensor]) -> Tensor | None:
        joined = torch.cat([part.chunk(2, dim=1)[0] for part in parts], dim=-1)
        return joined if joined.shape[-1] == 2 * layer.head_dim else None


def _of_diff_llama(layer: nn.Module) -> Tensor:
    """Equation 2 of the paper."""
    first, second = ((getattr(layer, f"lambda_q{i}") * getattr(layer, f"lambda_k{i}")).sum() for i in (1, 2))
    return first.exp() - second.exp() + layer.lambda_init


OWN_MAP = OwnMap()
SIGNED_MAPS: dict[str, OwnMap] = {"DiffLlamaAttention": Difference(_of_diff_llama)}  # by the class name of the layer


def map_of(layer: nn.Module) -> OwnMap:
    """The adapter of a layer's class, or of a class that it inherits from."""
    return next((SIGNED_MAPS[base.__name__] for base in type(layer).__mro__ if base.__name__ in SIGNED_MAPS), OWN_MAP)
