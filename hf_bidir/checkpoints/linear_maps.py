"""The linear maps of a model, with adapters or quantised weights too: which they are, their weights and gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hf_bidir.checkpoints.module_hooks import evaluation_mode, hooked


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
    return _base_of(module.base_layer) if isinstance(getattr(module, "base_layer", None), nn.Module) else module


def is_plain(linear: nn.Module) -> bool:
    """Whether the map is its weight and bias alone, without an adapter and in full precision."""
    return type(linear) in (nn.Linear, Conv1D) and type(linear.weight) is nn.Parameter


def weight_of(linear: nn.Module) -> Tensor:
    """The weight as `[outputs, inputs]`: a view; of a map that is not plain, what it computes of unit vectors."""
    if is_plain(linear):
        weight: Any = parameter_of(linear, "weight")
        return weight.T if isinstance(linear, Conv1D) else weight
    units = torch.cat([torch.zeros(1, linear.in_features), torch.eye(linear.in_features)])
    with evaluation_mode(linear), torch.no_grad():
        bias, *columns = linear(_placed(units, linear))
    return (torch.stack(columns) - bias).T


def parameter_of(module: nn.Module, name: str) -> Tensor | None:
    """A parameter of a module, also where accelerate loads it for each call; None if there is none."""
    parameter = getattr(module, name, None)
    if parameter is None or not parameter.is_meta:
        return parameter
    from accelerate.utils import align_module_device  # which has put it there, so it is installed

    with align_module_device(module):
        return getattr(module, name)


def _placed(states: Tensor, linear: nn.Module) -> Tensor:
    """The inputs on the device of the map, in the precision of its floating-point weights."""
    weights = list(linear.parameters())
    dtype = next((weight.dtype for weight in weights if weight.is_floating_point()), states.dtype)
    return states.to(weights[0].device if weights else states.device, dtype)


@contextmanager
def gradients_through(model: nn.Module) -> Iterator[None]:
    """Inside the context, gradients flow through maps that round their inputs, in calls from this thread.

    The output stays what the map computes. Its gradient is that of a product with `weight_of` the map, as if the inputs
    were not rounded (straight-through, Bengio et al. 2013, arXiv 1308.3432). Maps with a gradient keep their own.
    """
    bases = [base for base in map(_base_of, linear_maps(model)) if not is_plain(base) and not _has_gradient(base)]
    states: dict[nn.Module, Tensor] = {}

    def before(linear: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        given = args or tuple(kwargs.values())
        if not (torch.is_grad_enabled() and given[0].requires_grad):
            return None
        states[linear] = given[0]
        return (given[0].detach(), *given[1:]), {}

    def after(linear: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor | None:
        return _StraightThrough.apply(states.pop(linear), output.detach(), linear) if linear in states else None

    with hooked(bases, before=before, after=after):
        yield


def _has_gradient(linear: nn.Module) -> bool:
    """Whether a gradient flows from the output of a map to its input."""
    if any(hasattr(weight, "placements") for weight in linear.parameters()):
        return True  # weights that are divided among processes, which only a call of the whole model puts together
    with torch.inference_mode(False), torch.enable_grad(), evaluation_mode(linear):
        state = _placed(torch.ones(1, linear.in_features), linear)
        with torch.no_grad():
            linear(state)  # after which bitsandbytes may compute by another function
        output = linear(state.requires_grad_()).sum()
        return output.requires_grad and torch.autograd.grad(output, state, allow_unused=True)[0] is not None


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, output: Tensor, linear: nn.Module) -> Tensor:
        ctx.linear = linear
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        # not kept from pass to pass: it takes four times the memory of the 8-bit weight
        return grad @ weight_of(ctx.linear).to(grad.dtype), None, None
