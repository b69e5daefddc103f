"""What a signed layer computes in a call: by the function of the stock model, a stock kernel, or this package."""

import inspect
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from .activations import WITH_NEGATIVE_MASS
from .attention import attend
from .attention_call import AttentionCall, attention_call, check_shapes, is_sliding_window, keep_and_bias, same_batch
from .attention_layers import own_eager
from .compat import ATTN_IMPLEMENTATION, attn_implementation, raw_attribute
from .configuration_bidir import all_masses, layer_negative_mass
from .eager_attention import grouped_matmul
from .interventions import NONE, Interventions, running_call
from .own_attention import is_own_function, own_attention

logger = logging.get_logger(__name__)

BACKENDS = {
    "sdpa": "the fastest exact path for the device, the default",
    "eager": "returns the coefficients",
    "fused": "always the Triton kernel, on a GPU",
}
MOST_CALLS = 64  # that a layer remembers
PAGED = "paged|eager"  # the eager path of transformers' continuous batching
REGISTERED = (None, *BACKENDS, PAGED)
SDPA = ALL_ATTENTION_FUNCTIONS["sdpa"]  # transformers' own function
SDPA_LACKS = {"position_bias", "softcap", "s_aux"} - inspect.signature(SDPA).parameters.keys()
SPARSE = frozenset({"block_indices", "indices"})  # arguments that select keys by index
PACKED = frozenset({"cu_seq_lens_k", "cu_seq_lens_q"})  # of packed examples, which flash kernels keep apart
UNSUPPORTED = SPARSE | PACKED | {"cache"}  # and a paged cache that the attention function updates (transformers 5.0)


class Plan(NamedTuple):
    """What a signed layer computes, as its config says."""

    activation: str
    window: int | None
    negative_mass: float | list[float]  # that of the layer, or one per head
    softmax: bool  # over all keys, which the function of the stock model may compute
    kernel: str | None  # the flash or flex attention, or the function of a user, that the layer is to use
    own: bool  # whether it is the function of a user
    backend: str  # which of BACKENDS computes what no kernel does
    calls: dict[tuple, AttentionCall] | None  # the checked options of the calls so far; None: not kept

    def to_softmax(self) -> "Plan":
        """The same layer with softmax. Its calls are checked anew: their options depend on the activation."""
        return self._replace(activation="softmax", negative_mass=0.0, softmax=self.window is None, calls=None)


def heads_of(layer: nn.Module) -> int | None:
    """The number of heads if known from the layer or its config; otherwise the first forward pass checks it."""
    own = getattr(layer, "num_heads", getattr(layer, "num_attention_heads", None))
    return own if own is not None else getattr(getattr(layer, "config", None), "num_attention_heads", None)


def plan_of(layer: nn.Module, compiling: bool) -> Plan:
    """The plan of a layer, made anew when its config has changed."""
    if compiling:
        return _made_plan(layer, None)
    view = layer.signed_view
    bidir, stock = raw_attribute(view.bidir, "__dict__"), raw_attribute(view.stock, "__dict__")
    now = (
        bidir.get("attn_activation"), bidir.get("attn_negative_mass"), bidir.get("attn_window"),
        stock.get(ATTN_IMPLEMENTATION),
    )  # fmt: skip
    known = view.__dict__.get("plan")
    if known is None or known[0] != now:
        known = deepcopy(now), _made_plan(layer, {})  # a list of masses may change in place
        view.__dict__["plan"] = known
    return known[1]


def _made_plan(layer: nn.Module, calls: dict | None) -> Plan:
    config, name = layer.signed_view.bidir, attn_implementation(layer.signed_view.stock)
    activation, window = config.attn_activation, config.attn_window
    mass = layer_negative_mass(config, layer.signed_index, layer.signed_count)
    softmax = activation == "softmax" or (activation in WITH_NEGATIVE_MASS and not any(all_masses(mass)))
    kernel = None if name in REGISTERED else name
    own = kernel is not None and is_own_function(kernel)
    if own and not (softmax and window is None):
        raise ValueError(
            f'attn_implementation="{name}" computes attention of its own, which cannot be signed in addition; set '
            "attn_negative_mass=0 to explain it as it is."
        )
    backend = name if name in BACKENDS else "eager" if name == PAGED else "sdpa"
    return Plan(activation, window, mass, softmax and window is None, kernel, own, backend, calls)


class LayerCall(NamedTuple):
    """The running call of a signed layer: the layer, its plan, and what the model's call changes or asks for."""

    layer: nn.Module
    plan: Plan
    changes: Interventions
    wanting: bool  # coefficients


def signed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Signed attention with the signature of transformers' `AttentionInterface`.

    A softmax layer calls the function that the stock model would call, and so equals it to the bit.

    Args:
        module: a signed layer.
        query, key, value: `[batch, heads, length, head_dim]`; keys and values may have fewer heads, and their batch or
            the query's may be 1.
        attention_mask: None, boolean, or float: entries of at most -50 mask the key, others are added to the scores.
        options: of the stock function; see `_attend`.

    Returns:
        The context `[batch, queries, heads, head_dim]`, and the coefficients `[batch, heads, queries, keys]` if the
        call asks for them or edits them, or the backend is "eager", else None.
    """
    compiling = torch.compiler.is_compiling()
    plan = plan_of(module, compiling)
    changes, wanting = running_call(module, compiling)
    if changes.softmax:
        plan, changes = plan.to_softmax(), changes.to_softmax()
    if isinstance(plan.negative_mass, list) and len(plan.negative_mass) != query.shape[1]:
        plan = plan._replace(negative_mass=_held(module, plan.negative_mass, query.shape[1]))
    if plan.softmax and changes is NONE and (stock := _stock_function(module, plan, wanting, options)):
        return stock(module, query, key, value, attention_mask, **options)
    for name in module.signed_view.refused:  # torch 2.8 compiles no set of strings
        if options.get(name) is not None:
            _refuse(module, plan, name, options)
    if changes.project:
        query, key, value = changes.project(query, key, value)
    if query.shape[0] != key.shape[0]:
        query, key, value = same_batch(query, key, value)
    attend_as = _attend_by_own if plan.own else _attend_by_kernel if plan.kernel else _attend
    call = LayerCall(module, plan, changes, wanting)
    context, coefficients = attend_as(call, query, key, value, attention_mask, **options)
    if changes.observe:
        changes.observe(module, key, value, context)
    return context, coefficients


def _held(layer: nn.Module, masses: list[float], heads: int) -> list[float]:
    """The masses of the heads of this process, one of those among which tensor parallelism divides the weights."""
    for weight in layer.parameters():
        for axis, placement in enumerate(getattr(weight, "placements", ())):  # of a DTensor
            if placement.is_shard() and weight.device_mesh.size(axis) * heads == len(masses):
                rank = weight.device_mesh.get_local_rank(axis)
                return masses[rank * heads : (rank + 1) * heads]
    return masses  # an error says that they do not fit


def _stock_function(module: nn.Module, plan: Plan, wanting: bool, options: dict[str, Any]) -> Any:
    """The function of the stock model for a layer that computes softmax; None if this call wants what the function does
    not give: coefficients or score terms from SDPA."""
    if plan.own:
        return ALL_ATTENTION_FUNCTIONS[plan.kernel]
    if plan.kernel:
        from .two_calls import stock_kernel

        return None if wanting else stock_kernel(plan.kernel)
    if plan.backend == "eager":
        paged = attn_implementation(module.signed_view.stock) == PAGED
        return ALL_ATTENTION_FUNCTIONS[PAGED] if paged else own_eager(type(module))  # type: ignore[arg-type]
    lacking = any(options.get(name) is not None for name in SDPA_LACKS)
    return None if plan.backend == "fused" or lacking or wanting else SDPA


def _attend_by_own(
    call: LayerCall, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """`_attend` by the function of a user."""
    return own_attention(call.layer, call.plan.kernel or "", call.changes, (query, key, value), mask, **options)


def _attend_by_kernel(
    call: LayerCall, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """`_attend` by two calls of a stock kernel, or another exact path for what that does not compute."""
    from .two_calls import kernel_attention, plain_mask, why_not

    (layer, plan, changes, wanting), kernel, activation = call, call.plan.kernel or "", call.plan.activation
    obstacles = {
        "coefficients": changes.edit or wanting,
        "a change of the mask": changes.keep is not None,
        "attn_window": plan.window is not None,
        "dropout": layer.training and options.get("dropout"),
        f"attn_activation {activation}": activation not in ("softmax", *WITH_NEGATIVE_MASS),
        "balanced attention with sinks": activation == "balanced" and options.get("s_aux") is not None,
    }
    reason = next(filter(obstacles.get, obstacles), None) or why_not(kernel, query, mask, options)
    if reason:
        if not torch.compiler.is_compiling():
            logger.warning_once(f"signed attention: {kernel} does not compute {reason}; another exact path does.")
        mask = plain_mask(kernel, query, key, mask, _is_causal(layer, options.get("is_causal"), query), options)
        return _attend(call, query, key, value, mask, **options | {"is_causal": False})
    options["dropout"] = 0.0
    return kernel_attention(layer, kernel, activation, plan.negative_mass, (query, key, value), mask, **options), None


def _attend(
    call: LayerCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Signed attention; result as in `signed_attention`.

    Args:
        scaling: factor on the scores, by default `head_dim ** -0.5`.
        is_causal: without a mask, query `i` attends to the keys `j <= i`; by default as the layer says.
        position_bias: added to the scores, `[batch or 1, heads, queries, keys]`; may contain a mask as well.
        softcap: scores become `softcap * tanh(scores / softcap)`.
        s_aux: `[heads]`, the score of an extra key without a value, which enters the normaliser only.
        others: refused if the layer's own attention function uses them, else ignored.
    """
    layer, plan, changes, wanting = call
    eager, keep, bias, window = plan.backend == "eager", mask, None, plan.window
    if position_bias is not None or (mask is not None and mask.dtype != torch.bool):
        keep, bias = keep_and_bias(mask, position_bias, omit_zero_bias=not eager)
    causal = mask is None and not eager and _is_causal(layer, is_causal, query)
    if sliding := others.get("sliding_window"):
        keep, causal, window = _window(plan, keep, causal, sliding)
    check_shapes(query, key, value, keep)
    given = scaling, dropout if layer.training else 0.0, causal, window
    no_terms = bias is None and softcap is None and s_aux is None
    if plan.calls is not None and no_terms and window is None and type(scaling) is float:
        options = plan.calls.get((*given, query.device))
        if options is None:
            if len(plan.calls) == MOST_CALLS:  # of a model whose scaling depends on the length
                plan.calls.clear()
            options = attention_call(query, key, plan.activation, plan.negative_mass, *given)
            plan.calls[(*given, query.device)] = options
    else:
        terms: dict[str, Any] = {"bias": bias, "softcap": softcap, "sinks": s_aux}
        options = attention_call(query, key, plan.activation, plan.negative_mass, *given, **terms)
    if changes.keep is not None:
        keep = changes.kept(keep)
    coefficients_needed = changes.edit or eager or wanting
    implementation = "eager" if coefficients_needed else "auto" if plan.backend == "sdpa" else plan.backend
    context, coefficients = attend(query, key, value, keep, options, implementation)
    if changes.edit and coefficients is not None:
        coefficients = changes.edit(coefficients)
        context = grouped_matmul(coefficients, value)
    # coefficients that the call does not ask for break reentrant gradient checkpointing
    return context.transpose(1, 2).contiguous(), coefficients if coefficients_needed else None


def _window(plan: Plan, keep: Tensor | None, causal: bool, sliding: int) -> tuple[Tensor | None, bool, int | None]:
    """Keep-mask, causality and window of a call: a mask that is just a sliding window becomes the latter two.

    The keys outside the window are then skipped, on every path but the eager one.
    """
    can_skip = plan.backend != "eager" and plan.activation == "tanhmax" and plan.negative_mass != 0
    if can_skip and plan.window is None and is_sliding_window(keep, sliding):
        return None, True, sliding - 1
    return keep, causal, plan.window


def _refuse(module: nn.Module, plan: Plan, name: str, options: dict[str, Any]) -> None:
    """Raise ValueError for an argument that would change the result and is not supported."""
    # continuous batching, which alone writes by index, keeps examples apart in its masks, and kernels do
    if name in PACKED and ("write_index" in options or plan.kernel):
        return
    raise ValueError(
        f"{type(module).__name__} passes {name} to its attention function, which signed attention does not support; "
        "omit the argument if it comes from your call, or use the softmax model."
    )


def _is_causal(module: nn.Module, is_causal: bool | None, query: Tensor) -> bool:
    """Whether attention without a mask is causal, by the rules of transformers' own SDPA function."""
    return query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal)


# What the layers may pass; a sliding window is part of the mask.
SUPPORTED = inspect.signature(_attend).parameters.keys() | {"module", "attention_mask", "sliding_window"}
