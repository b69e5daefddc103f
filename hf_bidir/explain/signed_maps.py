"""The signed map `A₁ - λ A₂` of differential attention (Ye et al. 2025, "Differential Transformer").

DiffLlama subtracts two softmax maps, of the first and the second half of the heads, after its attention function. Here
their difference is put into the forward pass, so that methods read it, and gradients with respect to it, like the
coefficients of a signed layer.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def difference(layer: nn.Module, coefficients: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The map `[batch, heads / 2, queries, keys]`, and the function that makes the coefficients of it."""
    added, subtracted = coefficients.chunk(2, dim=1)
    signed_map = added - (_weight(layer).to(subtracted.dtype) * subtracted).detach()

    def rebuilt(signed: Tensor) -> Tensor:
        # the value of `added`, unrounded, and the gradient of the map
        gradient = signed - signed.detach()  # 0
        return torch.cat([added.detach() + gradient, subtracted], dim=1)

    return signed_map, rebuilt


def joined_values(layer: nn.Module, parts: Sequence[Tensor]) -> Tensor | None:
    """What the map is multiplied by, `[batch, key heads, keys, value_dim]`.

    Args:
        parts: the values of the calls in a run: a layer of `head_dim` calls the attention function once, or twice with
            the same coefficients and one half of the values each. None before the last call.
    """
    halves = [part.chunk(2, dim=1)[0] for part in parts]
    joined = torch.cat(halves, dim=-1)
    return joined if joined.shape[-1] == 2 * layer.head_dim else None


def _weight(layer: nn.Module) -> Tensor:
    """The `λ` of a layer: equation 2 of the paper."""
    first = (layer.lambda_q1 * layer.lambda_k1).sum().exp()
    second = (layer.lambda_q2 * layer.lambda_k2).sum().exp()
    return first - second + layer.lambda_init
