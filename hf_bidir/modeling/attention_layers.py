"""Which modules of a model compute attention: they are recognised by the names in their code."""

import inspect
from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import Any

from torch import nn

SOFTMAX_FUNCTIONS = {"softmax", "Softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}
# Softmax in these classes, recognised by the end of their name, gives no coefficients of keys, and stays.
NO_ATTENTION = ("AttentionMap", "AssignAttention", "AttentiveStatisticsPooling", "GatedAttention", "AttentionGRUCell",
                "LinearSelfAttention", "AdditiveAttention")  # fmt: skip
# Attention that cannot be signed although it computes a softmax, by the end of its class name, with the reason.
UNSIGNABLE = {
    "NystromformerSelfAttention": "its coefficients are a product of three softmax matrices",
    "MptAttention": "its position biases count from the end of the text, so that signs would depend on its length",
    "BlockSparseAttention": 'the model replaces it for short texts; load it with attention_type="original_full"',
}
# what combines positions in place of attention, by parts of class names
MIXERS = ("Attention", "Mixer", "FourierTransform", "Recurrent", "LSTMLayer", "FocalModulation", "S6")


# mypy does not take type[Any] for hashable, hence the `type: ignore[arg-type]`s of this file
def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that use transformers' attention interface, in the order of `model.modules()`."""
    with_config = [module for module in model.modules() if hasattr(module, "config")]
    return [m for m in with_config if "ALL_ATTENTION_FUNCTIONS" in _forward_names(type(m))]  # type: ignore[arg-type]


def outside_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that compute attention by themselves, by name, in the order of `model.modules()`."""
    inside = set(attention_layers(model))
    return {
        name: module
        for name, module in model.named_modules()
        if module not in inside and _attends(type(module))  # type: ignore[arg-type]
    }


def attention_outside(model: nn.Module) -> list[str]:
    """The names of the layers that compute attention by themselves, and are not signed."""
    return [name for name, module in outside_layers(model).items() if not hasattr(module, "signed_index")]


def mixers(model: nn.Module) -> str:
    """What a model without softmax attention combines positions with, by the names of its classes."""
    classes = {type(module).__name__ for module in model.modules()}
    found = sorted(name for name in classes if any(word in name for word in MIXERS))
    innermost = [name for name in found if name.endswith(MIXERS)] or found
    return ", ".join(innermost[:3]) or ("convolutions" if any("Conv" in name for name in classes) else "")


@cache
def _attends(module_class: type[nn.Module]) -> bool:
    """Whether a module computes a softmax of attention in its own code."""
    name, names = module_class.__name__, _names(module_class)  # type: ignore[arg-type]
    named = "Att" in name and not name.endswith(NO_ATTENTION)
    return issubclass(module_class, nn.MultiheadAttention) or (named and bool(SOFTMAX_FUNCTIONS & names))


def _code(function: Callable) -> Any:
    """The code of a function; of one in C, which has none, the code of this one, which names no attention."""
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
