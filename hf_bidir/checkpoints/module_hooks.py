"""Contexts that change how the modules of a model run, in calls from this thread."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Inside the context, evaluation mode; restores the modes of all modules afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def hooked(
    modules: Iterable[nn.Module],
    *,
    before: Callable | None = None,
    after: Callable | None = None,
) -> Iterator[None]:
    """Inside the context, call `before(module, args, kwargs)` and `after(module, args, kwargs, output)` around forward
    passes of modules, as torch's hooks with keywords do, in calls from this thread."""
    with ExitStack() as stack:
        for module in modules:
            if before is not None:
                stack.enter_context(module.register_forward_pre_hook(_here(before), with_kwargs=True))
            if after is not None:
                stack.enter_context(module.register_forward_hook(_here(after), with_kwargs=True))
        yield


def _here(hook: Callable) -> Callable:
    """The hook, with an effect in this thread only; other threads may call the same model meanwhile."""
    thread = threading.get_ident()
    return lambda *call: hook(*call) if threading.get_ident() == thread else None
