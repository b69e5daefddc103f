"""What the running call of a model wants from its attention layers beyond their config: coefficients, or changes.

These belong to a call, so they are kept per thread and asyncio task, and never on the modules, which calls share.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from .compat import CHECKPOINT_FUNCTION

Value = TypeVar("Value")


class CallVariable(Generic[Value]):
    """A value of the running thread or task.

    A graph of torch.compile cannot read those: while it is captured, only what is set inside it counts. Whoever sets a
    value outside of graphs therefore keeps graphs from running (`Graphs`).
    """

    def __init__(self, name: str, default: Value):
        self.context, self.captured = ContextVar(name, default=default), default

    def get(self, compiling: bool | None = None) -> Value:
        compiling = torch.compiler.is_compiling() if compiling is None else compiling
        return self.captured if compiling else self.context.get()

    def set(self, value: Value) -> None:
        if torch.compiler.is_compiling():
            self.captured = value
        else:
            self.context.set(value)


class Graphs:
    """Keeps graphs of torch.compile from running, in the whole process, while a call needs what they leave out."""

    def __init__(self) -> None:
        self.lock, self.calls = Lock(), 0
        self.stance: Any = nullcontext()

    def stop(self) -> None:
        with self.lock:
            self.calls += 1
            if self.calls == 1 and "torch._dynamo" in sys.modules:
                self.stance = torch.compiler.set_stance("force_eager")

    def resume(self) -> None:
        with self.lock:
            self.calls -= 1
            if self.calls == 0:
                self.stance.__exit__(None, None, None)
                self.stance = nullcontext()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Inside the context, what is compiled runs uncompiled; contexts of several threads may overlap."""
        self.stop()
        try:
            yield
        finally:
            self.resume()


@dataclass(frozen=True)
class Interventions:
    """Changes to one layer."""

    edit: Callable[[Tensor], Tensor] | None = None  # maps the coefficients [batch, heads, queries, keys]
    keep: Tensor | None = None  # boolean [batch, 1, 1, keys]; the layer drops the keys where it is False
    project: Callable[..., tuple[Tensor, ...]] | None = None  # maps query, key and value
    observe: Callable[..., None] | None = None  # is called with the layer, key, value and context
    softmax: bool = False  # compute softmax in place of what the config says

    def kept(self, keep: Tensor | None) -> Tensor | None:
        """A keep-mask without the keys that these changes drop."""
        if keep is None or self.keep is None:
            return self.keep if keep is None else keep
        return keep & self.keep

    def then(self, inner: "Interventions") -> "Interventions":
        """These, and then the inner ones."""
        edit, project = _joined(self.edit, inner.edit), _joined(self.project, inner.project)
        observe = _joined(self.observe, inner.observe, chain=False)
        return Interventions(edit, inner.kept(self.keep), project, observe, self.softmax or inner.softmax)

    def to_softmax(self) -> "Interventions":
        """These for a layer that computes softmax anyway; `NONE` if nothing else changes."""
        others = (self.edit, self.keep, self.project, self.observe)
        return NONE if all(one is None for one in others) else replace(self, softmax=False)


def _joined(first: Callable | None, second: Callable | None, chain: bool = True) -> Callable | None:
    """Both functions as one: with `chain` the second gets what the first returns, one value or several."""
    if first is None or second is None:
        return first or second

    def joined(*states: Any) -> Any:
        changed = first(*states)
        return second(*(states if not chain else changed if isinstance(changed, tuple) else (changed,)))

    return joined


NONE = Interventions()
graphs = Graphs()
# the models of this thread's running calls that want coefficients, one call inside the other
wanting_coefficients: CallVariable[tuple[nn.Module, ...]] = CallVariable("wanting_coefficients", ())
_by_layer: CallVariable[dict[nn.Module, Interventions]] = CallVariable("interventions", {})


def interventions_in(layer: nn.Module, compiling: bool | None = None) -> Interventions:
    """The changes to this layer in the running call."""
    changed = _by_layer.get(compiling)
    return changed.get(layer, NONE) if changed else NONE


def running_call(layer: nn.Module, compiling: bool) -> tuple[Interventions, bool]:
    """The changes to this layer in the running call, and whether the call wants coefficients."""
    return interventions_in(layer, compiling), bool(wanting_coefficients.get(compiling))


@contextmanager
def intervening(layers: Iterable[nn.Module], interventions: Interventions) -> Iterator[None]:
    """Inside the context, change these layers in calls from this thread, after the changes of surrounding contexts."""
    outer = _by_layer.get()
    _by_layer.set({**outer, **{layer: outer.get(layer, NONE).then(interventions) for layer in layers}})
    try:
        with graphs.stopped():
            yield
    finally:
        _by_layer.set(outer)


def recompute_alike(model: nn.Module) -> None:
    """With gradient checkpointing, run layers again with the changes of the forward pass."""
    for module in model.modules():
        if checkpoint := vars(module).get(CHECKPOINT_FUNCTION):
            setattr(module, CHECKPOINT_FUNCTION, recomputed_alike(checkpoint))


def recomputed_alike(checkpoint: Callable) -> Callable:
    """A function for gradient checkpointing that runs a layer again as in the forward pass, in whichever thread.

    The backward pass comes after the model's call, and on a GPU in a thread of its own.
    """

    def checkpointed(function: Callable, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return checkpoint(function, *args, **kwargs)
        return checkpoint(partial(copy_context().run, function), *args, **kwargs)

    return checkpointed
