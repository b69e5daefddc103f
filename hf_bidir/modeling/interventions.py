"""What the running call of a model wants from its attention layers beyond their config: coefficients, or changes.

These belong to a call, so they are kept per thread and asyncio task, and never on the modules, which calls share.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

Value = TypeVar("Value")


class CallVariable(Generic[Value]):
    """A value of the running thread or task. A compiled graph, which cannot read those, sees the one set last."""

    def __init__(self, name: str, default: Value):
        self.context, self.latest = ContextVar(name, default=default), default

    def get(self) -> Value:
        return self.latest if torch.compiler.is_compiling() else self.context.get()

    def set(self, value: Value) -> None:
        self.latest = value
        if not torch.compiler.is_compiling():
            self.context.set(value)


@dataclass(frozen=True)
class Interventions:
    """Changes to one layer.

    Attributes:
        edit: maps the coefficients `[batch, heads, queries, keys]` to the same shape.
        keep: boolean `[batch, 1, 1, keys]`; the layer drops the keys where it is False.
        project: maps query, key and value to the same shapes.
        observe: is called with the layer, key, value and context.
    """

    edit: Callable[[Tensor], Tensor] | None = None
    keep: Tensor | None = None
    project: Callable[..., tuple[Tensor, ...]] | None = None
    observe: Callable[..., None] | None = None

    def then(self, inner: "Interventions") -> "Interventions":
        """These, and then the inner ones."""

        def project(*states: Tensor) -> tuple[Tensor, ...]:
            return inner.project(*self.project(*states))  # type: ignore[misc]  # called only if both are set

        def observe(*call: Any) -> None:
            for observer in (self.observe, inner.observe):
                observer(*call)  # type: ignore[misc]

        def both(name: str, combined: Any) -> Any:
            first, second = getattr(self, name), getattr(inner, name)
            return combined(first, second) if first is not None and second is not None else first or second

        edit = both("edit", lambda first, second: lambda coefficients: second(first(coefficients)))
        keep = inner.keep if self.keep is None else self.keep if inner.keep is None else self.keep & inner.keep
        return Interventions(edit, keep, both("project", lambda *_: project), both("observe", lambda *_: observe))


NONE = Interventions()
# how many of the model calls that are running in this thread, one inside the other, want coefficients
wanting_coefficients: CallVariable[int] = CallVariable("wanting_coefficients", 0)
_by_layer: CallVariable[dict[nn.Module, Interventions]] = CallVariable("interventions", {})


def interventions_in(layer: nn.Module) -> Interventions:
    """The changes to this layer in the running call."""
    changed = _by_layer.get()
    return changed.get(layer, NONE) if changed else NONE


@contextmanager
def intervening(layers: Iterable[nn.Module], interventions: Interventions) -> Iterator[None]:
    """Inside the context, change these layers in calls from this thread, after the changes of surrounding contexts."""
    outer = _by_layer.get()
    _by_layer.set({**outer, **{layer: outer.get(layer, NONE).then(interventions) for layer in layers}})
    try:
        yield
    finally:
        _by_layer.set(outer)


def recomputed_alike(checkpoint: Callable) -> Callable:
    """A function for gradient checkpointing that runs a layer again as in the forward pass, in whichever thread.

    The backward pass comes after the model's call, and on a GPU in a thread of its own.
    """

    def checkpointed(function: Callable, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return checkpoint(function, *args, **kwargs)
        return checkpoint(partial(copy_context().run, function), *args, **kwargs)

    return checkpointed
