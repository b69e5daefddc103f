"""Changes to the attention layers of a running call: edited coefficients, dropped keys, observers.

They belong to a call, so they are kept per thread and asyncio task, in a `ContextVar` of the code of the layers, which
may have come with a checkpoint; and never on the modules, which calls share.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from hf_bidir.kernels.observed_operators import ObservedOperators
from hf_bidir.modeling.attention_call import same_batch
from hf_bidir.modeling.compat import CHECKPOINT_FUNCTION
from hf_bidir.modeling.eager_attention import grouped_matmul
from hf_bidir.modeling.signed_layers import LayerCall, Plan

Attended = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Interventions:
    """Changes to one layer."""

    edit: Callable[[Tensor], Tensor] | None = None  # maps the coefficients [batch, heads, queries, keys]
    keep: Tensor | None = None  # boolean [batch, 1, 1, keys]; the layer drops the keys where it is False
    project: Callable[..., tuple[Tensor, ...]] | None = None  # maps query, key and value
    observe: Callable[..., None] | None = None  # is called with the layer, key, value and context
    softmax: bool = False  # compute softmax in place of what the config says

    @property
    def only_softmax(self) -> bool:
        return all(change is None for change in (self.edit, self.keep, self.project, self.observe))

    def then(self, inner: "Interventions") -> "Interventions":
        """These, and then the inner ones."""
        return Interventions(
            edit=_chained(self.edit, inner.edit),
            keep=inner.kept(self.keep),
            project=_chained(self.project, inner.project),
            observe=_both(self.observe, inner.observe),
            softmax=self.softmax or inner.softmax,
        )

    def kept(self, keep: Tensor | None) -> Tensor | None:
        """A keep-mask without the keys that these changes drop."""
        if keep is None or self.keep is None:
            return self.keep if keep is None else keep
        return keep & self.keep

    def plan(self, plan: Plan) -> Plan:
        """What a layer with this plan computes."""
        if self.softmax:
            plan = plan._replace(activation="softmax", negative_mass=0.0, softmax=plan.window is None)
        return plan

    def attend(self, proceed: Callable[[LayerCall], Attended], call: LayerCall) -> Attended:
        """The attention of a layer that uses transformers' interface, `proceed`, with these changes."""
        call = call._replace(plan=self.plan(call.plan))
        if self.only_softmax:
            return proceed(call)
        states = call.query, call.key, call.value
        query, key, value = same_batch(*(self.project(*states) if self.project else states))
        wanted = self.edit is not None or call.coefficients
        # the function of the stock model takes no keep-mask, and may return no coefficients
        plan = call.plan._replace(softmax=call.plan.softmax and self.edit is None and self.keep is None)
        call = call._replace(
            plan=plan, query=query, key=key, value=value, coefficients=wanted, keep=self.kept(call.keep)
        )
        context, coefficients = proceed(call)
        if self.edit is not None and coefficients is not None:
            coefficients = self.edit(coefficients)
            context = grouped_matmul(coefficients, value).transpose(1, 2).contiguous()
        if self.observe is not None:
            self.observe(call.layer, key, value, context)
        return context, coefficients

    def operators(self, layer: nn.Module, plan: Plan) -> tuple[Plan, ObservedOperators | None]:
        """The plan of a layer outside the interface, and what replaces its operators; None: the stock code runs."""
        plan = self.plan(plan)
        return plan, None if plan.softmax and self.only_softmax else ObservedOperators(layer, plan, self)

    def weigh(self, activated: Callable[..., Tensor], scores: Tensor, keep: Tensor | None) -> Tensor:
        """The coefficients of a layer with its own scores, from `activated(scores, keep, softmax)`."""
        coefficients = activated(scores, self.kept(keep), self.softmax)
        return self.edit(coefficients) if self.edit else coefficients


def _chained(first: Callable | None, second: Callable | None) -> Callable | None:
    """The second function of what the first returns, one value or several."""
    if first is None or second is None:
        return first or second

    def chained(*states: Any) -> Any:
        changed = first(*states)
        return second(*changed) if isinstance(changed, tuple) else second(changed)

    return chained


def _both(first: Callable | None, second: Callable | None) -> Callable | None:
    if first is None or second is None:
        return first or second

    def both(*states: Any) -> None:
        first(*states)
        second(*states)

    return both


class Graphs:
    """Keeps graphs of torch.compile from running, in the whole process, while a call needs what they leave out."""

    def __init__(self) -> None:
        self.lock, self.calls = Lock(), 0
        self.stance: Any = nullcontext()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Inside the context, what is compiled runs uncompiled; contexts of several threads may overlap."""
        with self.lock:
            self.calls += 1
            if self.calls == 1 and "torch._dynamo" in sys.modules:
                self.stance = torch.compiler.set_stance("force_eager")
        try:
            yield
        finally:
            with self.lock:
                self.calls -= 1
                if self.calls == 0:
                    self.stance.__exit__(None, None, None)
                    self.stance = nullcontext()


graphs = Graphs()


@contextmanager
def intervening(model: nn.Module, layers: list[nn.Module], interventions: Interventions) -> Iterator[None]:
    """Inside the context, change these layers in calls from this thread, after the changes of surrounding contexts.

    Raises:
        ValueError: the layers run the code of an older version, which came with their checkpoint.
    """
    by_code: dict[ContextVar[Mapping], dict] = {}
    for layer in layers:
        view = getattr(layer, "signed_view", layer)  # a layer with its own scores has no view
        changes = getattr(view, "changes", None)
        if not isinstance(changes, ContextVar):
            raise ValueError(
                f"this {type(model).__name__} runs the code of an older hf_bidir that came with its checkpoint, which "
                "cannot be observed; import hf_bidir before you load it."
            )
        outer = changes.get().get(view)
        by_code.setdefault(changes, {})[view] = interventions if outer is None else outer.then(interventions)
    with ExitStack() as stack:
        stack.enter_context(graphs.stopped())
        stack.enter_context(recomputed_alike(model))
        for changes, of_layers in by_code.items():
            stack.callback(changes.set, changes.get())
            changes.set({**changes.get(), **of_layers})
        yield


@contextmanager
def recomputed_alike(model: nn.Module) -> Iterator[None]:
    """With gradient checkpointing, layers that run inside the context run again in the context of that run, which the
    backward pass, maybe in another thread, does not have."""

    def alike(checkpoint: Callable, function: Callable, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(partial(copy_context().run, function), *args, **kwargs)

    functions = {module: vars(module).get(CHECKPOINT_FUNCTION) for module in model.modules()}
    functions = {module: checkpoint for module, checkpoint in functions.items() if checkpoint is not None}
    for module, checkpoint in functions.items():
        setattr(module, CHECKPOINT_FUNCTION, partial(alike, checkpoint))
    try:
        yield
    finally:
        for module, checkpoint in functions.items():
            setattr(module, CHECKPOINT_FUNCTION, checkpoint)
