"""Changes to the attention layers of a running call: edited coefficients and projections, observers.

They belong to a call, so they are kept per thread and asyncio task, in a `ContextVar` of the code of the layers, which
may have come with a checkpoint; and never on the modules, which calls share.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from hf_bidir.modeling.attention_call import same_batch
from hf_bidir.modeling.compat import CHECKPOINT_FUNCTION
from hf_bidir.modeling.eager_attention import grouped_matmul
from hf_bidir.modeling.signed_layers import LayerCall, Plan

Attended = tuple[Tensor, Any]


@dataclass(frozen=True)
class Interventions:
    """Changes to one layer; of several functions of a kind, each gets what the one before it returned."""

    edits: tuple[Callable[[Tensor], Tensor], ...] = ()  # map the coefficients [batch, heads, queries, keys]
    projections: tuple[Callable[..., tuple[Tensor, ...]], ...] = ()  # map query, key and value
    observers: tuple[Callable[..., None], ...] = ()  # are called with the layer, key, value and context
    softmax: bool = False  # compute softmax in place of what the config says

    def then(self, inner: "Interventions") -> "Interventions":
        """These, and then the inner ones."""
        return Interventions(
            self.edits + inner.edits,
            self.projections + inner.projections,
            self.observers + inner.observers,
            self.softmax or inner.softmax,
        )

    @property
    def only_softmax(self) -> bool:
        return not (self.edits or self.projections or self.observers)

    def attend(self, proceed: Callable[[LayerCall], Attended], call: LayerCall) -> Attended:
        """The attention of a layer that uses transformers' interface, `proceed`, with these changes."""
        plan = self.plan(call.plan)
        if self.only_softmax:
            return proceed(call._replace(plan=plan))
        if self.edits:  # the function of the stock model may return no coefficients
            call = call._replace(coefficients=True)
            plan = plan._replace(softmax=False)

        def attended(query: Tensor, key: Tensor, value: Tensor) -> Attended:
            return proceed(call._replace(plan=plan, query=query, key=key, value=value))

        return self.attend_with_changes(call.layer, attended, call.query, call.key, call.value)

    def plan(self, plan: Plan) -> Plan:
        """What a layer with this plan computes."""
        if self.softmax:
            plan = plan._replace(activation="softmax", negative_mass=0.0, softmax=plan.window is None)
        return plan

    def operators(self, layer: nn.Module, plan: Plan) -> tuple[Plan, Any]:
        """The plan of a layer outside the interface, and what replaces its operators; None: the stock code runs."""
        plan = self.plan(plan)
        if plan.softmax and self.only_softmax:
            return plan, None
        from .observed_operators import ObservedOperators

        return plan, ObservedOperators(layer, plan, self)

    def attend_with_changes(
        self,
        layer: nn.Module,
        attended: Callable[..., Attended],
        *states: Tensor,
    ) -> Attended:
        """Context `[batch, queries, heads, head_dim]` and coefficients of `attended(query, key, value)`, changed."""
        for project in self.projections:
            states = project(*states)
        query, key, value = same_batch(*states)
        context, coefficients = attended(query, key, value)
        if self.edits:
            coefficients = self.edited(coefficients)
            context = grouped_matmul(coefficients, value).transpose(1, 2).contiguous()
        self.observe(layer, key, value, context)
        return context, coefficients

    def edited(self, coefficients: Tensor) -> Tensor:
        for edit in self.edits:
            coefficients = edit(coefficients)
        return coefficients

    def observe(self, *call: Any) -> None:
        """Call the observers with the layer, key, value and context."""
        for observer in self.observers:
            observer(*call)


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
    """Inside the context, change these layers in calls from this thread, after the changes of surrounding contexts."""
    with ExitStack() as stack:
        stack.enter_context(graphs.stopped())
        stack.enter_context(recomputed_alike(model))
        for layer in layers:
            view = getattr(layer, "signed_view", layer)  # a layer with its own scores has no view
            outer = view.changes.get()
            stack.callback(view.changes.set, outer)
            view.changes.set({**outer, view: outer.get(view, Interventions()).then(interventions)})
        yield


@contextmanager
def recomputed_alike(model: nn.Module) -> Iterator[None]:
    """With gradient checkpointing, layers that run inside the context run again in the context of that run, which the
    backward pass, maybe in another thread, does not have."""

    def alike(checkpoint: Callable, function: Callable, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(partial(copy_context().run, function), *args, **kwargs)

    functions = {module: vars(module).get(CHECKPOINT_FUNCTION) for module in model.modules()}
    checkpoints = {module: function for module, function in functions.items() if function}
    for module, checkpoint in checkpoints.items():
        setattr(module, CHECKPOINT_FUNCTION, partial(alike, checkpoint))
    try:
        yield
    finally:
        for module, checkpoint in checkpoints.items():
            setattr(module, CHECKPOINT_FUNCTION, checkpoint)
