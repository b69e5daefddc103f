"""Layers that use transformers' attention interface, signed.

Such a layer looks up its attention function in `ALL_ATTENTION_FUNCTIONS` by the name in its config. A signed one has a
view of its config in which that name is the one of `signed_attention`; everything outside the layer sees the stock
config.
"""

import inspect
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple
from zlib import crc32

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .activations import attention_changes
from .attention import INSTALL, attend
from .attention_call import Attended, attention_call, check_shapes, keep_and_bias, same_batch
from .compat import attn_implementation, raw_attribute
from .configuration_bidir import check_layers, computes_softmax

# Unique per module name, so that code loaded with a checkpoint does not replace functions of another version.
SIGNED = f"signed-{crc32(__name__.encode()):08x}:"
SDPA = ALL_ATTENTION_FUNCTIONS["sdpa"]  # transformers' own function
SDPA_LACKS = {"position_bias", "softcap", "s_aux"} - inspect.signature(SDPA).parameters.keys()
# Arguments of attention functions: those that signed attention computes; and those that it refuses, which select keys
# by index or describe packed examples.
COMPUTED = {"scaling", "dropout", "is_causal", "position_bias", "softcap", "s_aux", "sliding_window"}
STATES = {"module", "query", "key", "value", "attention_mask"}
PACKED = frozenset({"cu_seq_lens_k", "cu_seq_lens_q"})
SPARSE = frozenset({"block_indices", "indices"})
UNSUPPORTED = PACKED | SPARSE


class Plan(NamedTuple):
    """What a signed layer computes, as its config says."""

    activation: str
    negative_mass: float | list[float]  # of the layer, or one per head
    window: int | None
    backend: str  # the attn_implementation
    softmax: bool  # whether the function of the stock model may compute it


class LayerCall(NamedTuple):
    """A call of a signed layer: what its attention function gets, and what is to be computed."""

    layer: nn.Module
    plan: Plan
    query: Tensor  # [batch, heads, queries, head_dim]
    key: Tensor  # [batch, key heads, keys, head_dim]
    value: Tensor
    mask: Any
    options: dict[str, Any]
    coefficients: bool = False  # whether they are needed


class SignedConfig:
    """A layer's view of its stock config, with another name of the attention function.

    `bidir` is the config of the whole model, `index` the place of the layer among its `count` signed layers, `refused`
    are arguments of the attention function that signed attention does not support.
    """

    changes: ClassVar = attention_changes

    def __init__(self, stock: Any, bidir: PretrainedConfig, index: int, count: int, refused: Iterable[str] = ()):
        vars(self).update(stock=stock, bidir=bidir, index=index, count=count, refused=tuple(refused))

    def __getattr__(self, name: str) -> Any:
        if "stock" not in vars(self):  # while the object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.stock, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.stock, name, value)

    def plan(self) -> Plan:
        """What the layer computes, as its config says now."""
        fields = raw_attribute(self.bidir, "__dict__")
        activation = fields["attn_activation"]
        window = fields["attn_window"]
        mass = fields["attn_negative_mass"]
        if isinstance(mass, list | tuple):
            if len(mass) != self.count:
                check_layers(mass, [None] * self.count)
            mass = mass[self.index]
        softmax = window is None and computes_softmax(activation, mass)
        backend = attn_implementation(self.stock) or "sdpa"
        return Plan(activation, mass, window, backend, softmax)

    def change(self) -> Any:
        """What changes the layer in the running call; None if nothing does."""
        return None if torch.compiler.is_compiling() else self.changes.get().get(self)

    @property
    def _attn_implementation(self) -> str:
        name = attn_implementation(self.stock) or "sdpa"
        if name in BUILT_IN:
            return SIGNED + name
        if name != "fused" and self.plan().softmax and self.change() is None:
            return name  # a kernel or a function of the user, which the layer calls as the stock model does
        check_attn_implementation(name)
        if SIGNED + name not in ALL_ATTENTION_FUNCTIONS:
            AttentionInterface.register(SIGNED + name, signed_attention)
        return SIGNED + name


def signed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
) -> Attended:
    """Signed attention with the signature of transformers' `AttentionInterface`.

    A softmax layer calls the function that the stock model would call, and so equals it to the bit.

    Args:
        module: a signed layer.
        query, key, value: `[batch, heads, length, head_dim]`; keys and values may have fewer heads, and a batch of 1.
        attention_mask: None, boolean, or float: entries of at most -50 mask the key, others are added to the scores.
        options: as in `attend_by`; others are refused if the layer's own function uses them, else ignored.

    Returns:
        The context `[batch, queries, heads, head_dim]`, and if the call or the backend asks for them the coefficients
        `[batch, heads, queries, keys]`, else None.
    """
    view = module.signed_view
    requested = bool(requests.get())
    call = LayerCall(module, view.plan(), query, key, value, attention_mask, options, requested)
    change = view.change()
    return attend_in_layer(call) if change is None else change.attend(attend_in_layer, call)


def attend_in_layer(call: LayerCall) -> Attended:
    """Context and coefficients as in `signed_attention`, by the stock function or by the layer's backend."""
    stock = _stock_function(call)
    if stock is not None:
        return stock(call.layer, call.query, call.key, call.value, call.mask, **call.options)
    backend = backend_of(call.plan.backend)
    for name in call.layer.signed_view.refused:  # torch 2.8 compiles no set of strings
        if call.options.get(name) is not None and name not in backend.computes:
            raise ValueError(
                f"{type(call.layer).__name__} passes {name} to its attention function, which signed attention does not "
                "support; omit the argument if it comes from your call, or use the softmax model."
            )
    if call.query.shape[0] != call.key.shape[0]:
        query, key, value = same_batch(call.query, call.key, call.value)
        call = call._replace(query=query, key=key, value=value)
    return backend.attend(call)


def _stock_function(call: LayerCall) -> Callable | None:
    """The function of the stock model, for a softmax layer; None if it does not give what the call needs."""
    if not call.plan.softmax:
        return None
    if call.plan.backend == "eager":
        return stock_eager(type(call.layer))  # type: ignore[arg-type]
    lacking = call.coefficients or any(call.options.get(name) is not None for name in SDPA_LACKS)
    return SDPA if call.plan.backend == "sdpa" and not lacking else None


def attend_by(implementation: str, call: LayerCall) -> Attended:
    """The attention of a layer by an implementation of `bidir_attention`, or where coefficients are needed by "eager".

    Options of the call: `scaling`, `dropout`, `is_causal` of calls without a mask, by default as the layer says;
    `position_bias`, which may contain a mask; `softcap`; `s_aux` `[heads]`, the score of an extra key without a value.
    """
    plan = call.plan
    options = call.options
    eager = implementation == "eager"
    keep, bias = keep_and_bias(call.mask, options.get("position_bias"), find_zeros=not eager)
    check_shapes(call.query, call.key, call.value, keep)
    attention = attention_call(
        call.query,
        call.key,
        plan.activation,
        plan.negative_mass,
        scaling=options.get("scaling"),
        dropout=options.get("dropout") or 0.0 if call.layer.training else 0.0,
        causal=call.mask is None and not eager and is_causal(call),
        window=plan.window,
        bias=bias,
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
    )
    if call.coefficients:
        implementation = "eager"
    context, coefficients = attend(call.query, call.key, call.value, keep, attention, implementation)
    # coefficients that the call does not ask for break reentrant gradient checkpointing
    return context.transpose(1, 2).contiguous(), coefficients if eager or call.coefficients else None


def is_causal(call: LayerCall) -> bool:
    """Whether attention without a mask is causal, by the rules of transformers' own SDPA function."""
    causal = call.options.get("is_causal")
    if causal is None:
        causal = getattr(call.layer, "is_causal", True)
    return call.query.shape[2] > 1 and causal


class Backend(NamedTuple):
    """How signed layers with some attn_implementation attend."""

    attend: Callable[[LayerCall], Attended]
    computes: frozenset[str] = frozenset()  # options that others refuse
    obstacle: Callable[[], str | None] = lambda: None  # the reason why it cannot run on this machine


BUILT_IN = {"sdpa": "auto", "eager": "eager"}  # and the implementations of `bidir_attention`
BACKENDS = {name: Backend(partial(attend_by, implementation)) for name, implementation in BUILT_IN.items()}
# of an installed room: functions that return the backend of an attn_implementation, or None
OTHER_BACKENDS: list[Callable[[str], Backend | None]] = []
for _name in BUILT_IN:
    AttentionInterface.register(SIGNED + _name, signed_attention)


def backend_of(name: str) -> Backend:
    """The backend of an attn_implementation; ValueError if signed layers have none."""
    for find in (BACKENDS.get, *OTHER_BACKENDS):
        backend = find(name)  # type: ignore[operator]
        if backend is not None:
            return backend
    faster = '"fused", flash_attention_2, 3 or 4, flex_attention' if OTHER_BACKENDS else f"for others {INSTALL}"
    # begins like transformers' own message
    raise ValueError(
        f'Specified `attn_implementation="{name}"` is not supported: it does not compute signed attention; choose '
        f'"sdpa", "eager"; {faster}.'
    )


def check_attn_implementation(name: str | None, softmax: bool = False) -> None:
    """Raise ValueError unless `name` computes signed attention here, or is None (not chosen yet); for a model that
    computes `softmax`, functions of transformers and of users do as well."""
    if name is None or (softmax and name in ALL_ATTENTION_FUNCTIONS and name != "fused"):
        return
    if obstacle := backend_of(name).obstacle():
        raise ValueError(f'attn_implementation="{name}" cannot run here: {obstacle}; use "sdpa".')


class _Requests:
    """The models whose running calls want coefficients, one inside the other, in this thread or task.

    A graph of torch.compile cannot read a `ContextVar`: while it is captured, only what is set inside it counts.
    """

    def __init__(self) -> None:
        self.running: ContextVar[tuple[nn.Module, ...]] = ContextVar("requests", default=())
        self.captured: tuple[nn.Module, ...] = ()

    def get(self) -> tuple[nn.Module, ...]:
        return self.captured if torch.compiler.is_compiling() else self.running.get()

    def set(self, models: tuple[nn.Module, ...]) -> None:
        if torch.compiler.is_compiling():
            self.captured = models
        else:
            self.running.set(models)


requests = _Requests()


def signed_layers(model: nn.Module) -> list[nn.Module]:
    """The signed layers of a model, in the order of `attn_negative_mass`; empty for a stock model."""
    return [module for module in model.modules() if hasattr(module, "signed_index")]


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that use transformers' attention interface, in the order of `model.modules()`."""
    return [module for module in model.modules() if hasattr(module, "config") and _uses_interface(type(module))]


def _uses_interface(module_class: Any) -> bool:
    return "ALL_ATTENTION_FUNCTIONS" in forward_names(module_class)


def code_of(function: Callable) -> Any:
    """The code of a function; of one in C, which has none, the code of this one, which names no attention."""
    return getattr(inspect.unwrap(function), "__code__", None) or code_of.__code__


@cache
def forward_names(module_class: type[nn.Module]) -> frozenset[str]:
    """The attribute and global names in the code of a module's `forward`."""
    return frozenset(code_of(module_class.forward).co_names)


@cache
def stock_eager(module_class: type[nn.Module]) -> Callable | None:
    """The eager attention function that a layer calls by default, which its `forward` names."""
    functions = inspect.unwrap(module_class.forward).__globals__
    named = forward_names(module_class)  # type: ignore[arg-type]
    names = (name for name in named if name.endswith("eager_attention_forward"))
    return functions.get(next(names, ""))


def selects_keys(module_class: type[nn.Module]) -> bool:
    """Whether a layer passes keys that it selects by index to its attention function, as DeepSeek V3.2 does."""
    keywords = (names for names in code_of(module_class.forward).co_consts if isinstance(names, tuple))
    return any(not SPARSE.isdisjoint(names) for names in keywords)


def refused_options(layer: nn.Module) -> frozenset[str]:
    """`UNSUPPORTED`, and the parameters of the layer's own eager function that signed attention does not compute.

    Arguments that the eager function does not name have no effect in the stock model either.
    """
    eager = stock_eager(type(layer))  # type: ignore[arg-type]
    parameters = inspect.signature(eager).parameters.keys() if eager else set()
    return UNSUPPORTED | parameters - COMPUTED - STATES - {"kwargs"}


def heads_of(layer: nn.Module) -> int | None:
    """The number of heads if known from the layer or its config; otherwise the first forward pass checks it."""
    heads = getattr(layer, "num_heads", getattr(layer, "num_attention_heads", None))
    return heads if heads is not None else getattr(getattr(layer, "config", None), "num_attention_heads", None)
