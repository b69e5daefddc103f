"""The linear maps of a model, with adapters or quantised weights too: which they are, their weights and gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from .module_hooks import evaluation_mode, hooked


def linear_maps(model: nn.Module) -> Iterator[nn.Module]:
    """The linear maps; one with an adapter, or with quantised weights, is one map with all that is inside it."""
    for module in model.children():
        base = _base_of(module)
        if isinstance(base, nn.Linear | Conv1D) or _replaces_linear(base):
            yield module
        else:
            yield from linear_maps(module)


def _replaces_linear(module: nn.Module) -> bool:
    """Whether a module of another class has the sizes of a linear map, as quantised ones have, and none inside it."""
    sizes = hasattr(module, "in_features") and hasattr(module, "out_features")
    return sizes and not any(isinstance(part, nn.Linear) for part in module.modules())


def _base_of(module: nn.Module) -> nn.Module:
    """The layer under peft's adapters; the layer itself without any."""
    base = getattr(module, "base_layer", None)
    return _base_of(base) if isinstance(base, nn.Module) else module


def weight_of(linear: nn.Module) -> Tensor:
    """The weight as `[outputs, inputs]`: a view; with an adapter or quantised, what it computes of unit vectors."""
    if type(linear) in (nn.Linear, Conv1D) and type(linear.weight) is nn.Parameter:
        weight: Any = parameter_of(linear, "weight")
        return weight.T if isinstance(linear, Conv1D) else weight
    parameters = list(linear.parameters())
    dtype = next((weight.dtype for weight in parameters if weight.is_floating_point()), torch.float32)
    units = torch.eye(linear.in_features, dtype=dtype, device=parameters[0].device)
    with evaluation_mode(linear), torch.no_grad():
        origin = torch.zeros_like(units[:1])
        bias, *columns = linear(torch.cat([origin, units]))
    return (torch.stack(columns) - bias).T


def parameter_of(module: nn.Module, name: str) -> Tensor | None:
    """A parameter of a module, also where accelerate loads it for each call; None if there is none."""
    parameter = getattr(module, name, None)
    if parameter is None or not parameter.is_meta:
        return parameter
    from accelerate.utils import align_module_device  # which has put it there, so it is installed

    with align_module_device(module):
        return getattr(module, name)


@contextmanager
def gradients_through(model: nn.Module) -> Iterator[None]:
    """Inside the context, gradients flow through maps with quantised weights, in calls from this thread.

    The output stays what the map computes. Its gradient is that of a product with `weight_of` the map, as if the inputs
    were not rounded (straight-through, Bengio et al. 2013, arXiv 1308.3432).
    """

    def after(linear: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor | None:
        if not torch.is_grad_enabled() or not args[0].requires_grad:
            return None
        return _StraightThrough.apply(args[0], output.detach(), linear)

    with hooked(filter(_is_quantised, map(_base_of, linear_maps(model))), after=after):
        yield


def _is_quantised(linear: nn.Module) -> bool:
    """Whether the weight is stored in another way, but for parts of one that are divided among processes."""
    weight = getattr(linear, "weight", None)
    return type(weight) is not nn.Parameter and not hasattr(weight, "placements")


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, output: Tensor, linear: nn.Module) -> Tensor:
        ctx.linear = linear
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        # not kept from pass to pass: it takes four times the memory of the 8-bit weight
        return grad @ weight_of(ctx.linear).to(grad.dtype), None, None
