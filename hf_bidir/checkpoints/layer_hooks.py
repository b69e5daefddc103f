"""Looking into a signed model while it runs, and stepping in: its coefficients, its keys, its layers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor, nn

from hf_bidir.modeling.signed_layers import EDIT, KEEP, OBSERVE, signed_layers


@contextmanager
def edited_coefficients(model: nn.Module, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While the context lasts, `edit` sees, and may change, the coefficients of every layer of a signed model.

    Args:
        edit: `[batch, heads, queries, keys]` to the same shape, called once for each call of a layer, in their order;
            the values are weighted by what it returns.

    A backward pass belongs inside the context as well: gradient checkpointing runs layers again.
    """
    layers = _some_signed_layers(model)
    outer = getattr(layers[0], EDIT, None)  # of a context that surrounds this one; it comes first
    with _set_on(layers, EDIT, edit if outer is None else lambda coefficients: edit(outer(coefficients))):
        yield


def kept_keys(model: nn.Module, keep: Tensor) -> AbstractContextManager[None]:
    """While the context lasts, every layer of a signed model leaves out the keys where `keep` is False.

    Args:
        keep: boolean `[batch, 1, 1, keys]`, for calls without a cache; padding, and what a context around this one
            drops, is left out as well.
    """
    layers = _some_signed_layers(model)
    outer = getattr(layers[0], KEEP, None)
    return _set_on(layers, KEEP, keep if outer is None else keep & outer)


def observed_layers(
    model: nn.Module, observe: Callable[[nn.Module, Tensor, Tensor, Tensor], None]
) -> AbstractContextManager[None]:
    """While the context lasts, `observe(layer, key, value, context)` is called whenever a signed layer has run.

    Key and value are `[batch, key heads, keys, head_dim]`, the context `[batch, queries, heads, head_dim]`.
    """
    return _set_on(_some_signed_layers(model), OBSERVE, observe)


@contextmanager
def _set_on(layers: list[nn.Module], name: str, value: object) -> Iterator[None]:
    before = [getattr(layer, name, None) for layer in layers]
    for layer in layers:
        setattr(layer, name, value)
    try:
        yield
    finally:
        for layer, old in zip(layers, before, strict=True):
            setattr(layer, name, old)


def _some_signed_layers(model: nn.Module) -> list[nn.Module]:
    layers = signed_layers(model)
    if not layers:
        raise ValueError(f"expected a signed model, got {type(model).__name__}; hf_bidir.signed(model) makes it one.")
    return layers


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Without dropout while the context lasts."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
