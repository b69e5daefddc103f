"""Which modules of a model compute attention: they are recognised by the names in their code."""

import inspect
from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import Any

from torch import nn

SOFTMAX_FUNCTIONS = {"softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}


# mypy does not take type[Any] for hashable, hence the `type: ignore[arg-type]`s of this file
def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that use transformers' attention interface, in the order of `model.modules()`."""
    with_config = [module for module in model.modules() if hasattr(module, "config")]
    return [m for m in with_config if "ALL_ATTENTION_FUNCTIONS" in _forward_names(type(m))]  # type: ignore[arg-type]


def attention_outside(model: nn.Module) -> list[str]:
    """The names of attention modules that do not use the interface, and therefore stay softmax."""
    layers = set(attention_layers(model))
    return [
        name
        for name, module in model.named_modules()
        if module not in layers
        and (
            isinstance(module, nn.MultiheadAttention)
            or ("Att" in type(module).__name__ and SOFTMAX_FUNCTIONS & _names(type(module)))  # type: ignore[arg-type]
        )
    ]


def _code(function: Callable) -> Any:
    return getattr(inspect.unwrap(function), "__code__", None) or _code.__code__


@cache
def _forward_names(module_class: type[nn.Module]) -> frozenset[str]:
    """The attribute and global names in the code of a module's `forward`."""
    return frozenset(_code(module_class.forward).co_names)


@cache
def keywords(module_class: type[nn.Module]) -> frozenset[str]:
    """The keyword argument names that a module's `forward` passes to other functions."""
    return frozenset(chain(*(names for names in _code(module_class.forward).co_consts if isinstance(names, tuple))))


@cache
def _names(module_class: type[nn.Module]) -> frozenset[str]:
    """The attribute and global names in the code of any method of a module."""
    classes = (base for base in module_class.__mro__ if issubclass(base, nn.Module) and base is not nn.Module)
    methods = (method for base in classes for method in vars(base).values() if callable(method))
    return frozenset(chain(*(_code(method).co_names for method in methods)))


@cache
def own_eager(module_class: type[nn.Module]) -> Callable | None:
    """The eager attention function that a layer calls by default, which its `forward` names."""
    functions = inspect.unwrap(module_class.forward).__globals__
    names = [name for name in _code(module_class.forward).co_names if name.endswith("eager_attention_forward")]
    return functions.get(names[0]) if names else None
