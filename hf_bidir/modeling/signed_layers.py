"""Signing in place: turns any layer that uses transformers' attention interface into a signed one.

A layer looks up its attention function in `ALL_ATTENTION_FUNCTIONS` by the name in its config. Signing a layer replaces
its `config` by a view with the name of our function; everything outside the layer still sees the stock config.
"""

import inspect
from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, bidirectional_mask_function, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from .activations import WITH_NEGATIVE_MASS
from .attention import attend
from .attention_call import AttentionCall, attention_call
from .attention_inputs import check_shapes, keep_and_bias, same_batch
from .configuration_bidir import all_masses, check_layers, layer_negative_mass
from .eager_attention import grouped_matmul
from .interventions import NONE, graphs, intervening, interventions_in, recomputed_alike, wanting_coefficients

logger = logging.get_logger(__name__)

BACKENDS = {
    "sdpa": "the fastest exact path for the device, the default",
    "eager": "returns the coefficients",
    "fused": "always the Triton kernel, on a GPU",
}
# Unique per module name, so that code loaded with a checkpoint does not replace functions of another version.
SIGNED = f"signed-{crc32(__name__.encode()):08x}:"
SDPA = ALL_ATTENTION_FUNCTIONS["sdpa"]  # transformers' own function
SDPA_LACKS = {"position_bias", "softcap", "s_aux"} - inspect.signature(SDPA).parameters.keys()
SOFTMAX_FUNCTIONS = {"softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}
MASK_ROWS = 256  # rows of a mask that are compared at a time
SPARSE = frozenset({"block_indices", "indices"})  # arguments that select keys by index
UNSUPPORTED = SPARSE | {"cache", "cu_seq_lens_k", "cu_seq_lens_q"}  # and arguments of paged caches and packed examples


class SignedConfig:
    """A layer's view of its stock config, with another name of the attention function.

    Args:
        stock: the config of the layer.
        bidir: the config of the whole model, which has the attention fields.
        refused: arguments of the attention function that signed attention does not support.
    """

    def __init__(self, stock: Any, bidir: PretrainedConfig, refused: frozenset[str] = UNSUPPORTED):
        self.__dict__.update(stock=stock, bidir=bidir, refused=refused)

    def __getattr__(self, name: str) -> Any:
        if name in ("stock", "bidir", "refused"):  # not yet set while the object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.stock, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.stock, name, value)

    @property
    def _attn_implementation(self) -> str:
        name = self.stock._attn_implementation
        check_attn_implementation(name)
        return SIGNED + (name or "sdpa")


def check_attn_implementation(name: str | None, between_tokens: bool = True) -> None:
    """Raise ValueError unless `name` is a backend with signed attention, or None (not chosen yet).

    Args:
        between_tokens: False for a model with its own scores, which the kernel does not support.
    """
    known = {key: description for key, description in BACKENDS.items() if between_tokens or key != "fused"}
    if name is not None and name not in known:
        choices = ", ".join(f'"{key}" ({description})' for key, description in known.items())
        # begins like transformers' own message
        prefix = f'Specified `attn_implementation="{name}"` is not supported'
        raise ValueError(f"{prefix}: it does not compute signed attention; choose {choices}.")


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
def _keywords(module_class: type[nn.Module]) -> frozenset[str]:
    """The keyword argument names that a module's `forward` passes to other functions."""
    return frozenset(chain(*(names for names in _code(module_class.forward).co_consts if isinstance(names, tuple))))


@cache
def _names(module_class: type[nn.Module]) -> frozenset[str]:
    """The attribute and global names in the code of any method of a module."""
    classes = (base for base in module_class.__mro__ if issubclass(base, nn.Module) and base is not nn.Module)
    methods = (method for base in classes for method in vars(base).values() if callable(method))
    return frozenset(chain(*(_code(method).co_names for method in methods)))


def sign_layers(model: PreTrainedModel, config: PretrainedConfig) -> None:
    """Make every attention layer of a model signed, as `config` says. A failure changes nothing.

    Raises:
        ValueError: no layer uses the interface; some attention is outside it, without `attn_partial` in the config; or
            a list of negative masses does not match the layers.
    """
    layers, name = attention_layers(model), type(model).__name__
    outside = attention_outside(model)
    if not layers:
        where = f"; its attention is in {_listed(outside)}" if outside else ""
        raise ValueError(
            f"{name} has no layer that computes attention through transformers' attention interface{where}. "
            "`hf-bidir families` lists the model types that can be signed."
        )
    if sparse := sorted({type(m).__name__ for m in layers if SPARSE & _keywords(type(m))}):  # type: ignore[arg-type]
        raise ValueError(
            f"{name} limits its queries to keys chosen by index ({_listed(sparse)}), which signed attention does not "
            "compute; use a model with dense attention."
        )
    if outside and not config.attn_partial:
        raise ValueError(
            f"{name} computes some attention outside transformers' attention interface, which would stay softmax: "
            f"{_listed(outside)}. To accept that: signed(model, partial=True), --partial, attn_partial in the config."
        )
    check_layers(config.attn_negative_mass, [heads_of(layer) for layer in layers])
    stocks = [config if layer.config is model.config else layer.config for layer in layers]
    refused = [_unsupported_arguments(layer) for layer in layers]
    for index, layer in enumerate(layers):
        layer.signed_index, layer.signed_count, layer.intervening = index, len(layers), intervening
        layer.config = SignedConfig(stocks[index], config, refused[index])
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.register_forward_pre_hook(_before_forward, with_kwargs=True)
            part.register_forward_hook(_after_forward, with_kwargs=True, always_call=True)
    recompute_alike(model)


def recompute_alike(model: nn.Module) -> None:
    """With gradient checkpointing, run layers again with the changes of the forward pass (`recomputed_alike`)."""
    for module in model.modules():
        if checkpoint := vars(module).get("_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = recomputed_alike(checkpoint)


def _unsupported_arguments(layer: nn.Module) -> frozenset[str]:
    """`UNSUPPORTED`, and the parameters of the layer's own eager function that `signed_attention` does not have.

    Arguments that the eager function does not name have no effect in the stock model either. A sliding window is
    already part of the mask.
    """
    parameters = inspect.signature(_own_eager(type(layer)) or _attend).parameters  # type: ignore[arg-type]
    return UNSUPPORTED | parameters.keys() - {"sliding_window"}


@cache
def _own_eager(module_class: type[nn.Module]) -> Callable | None:
    """The eager attention function beside a layer's class, which the layer calls by default."""
    return inspect.unwrap(module_class.forward).__globals__.get("eager_attention_forward")


def _listed(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def heads_of(layer: nn.Module) -> int | None:
    """The number of heads if known from the layer or its config; otherwise the first forward pass checks it."""
    own = getattr(layer, "num_heads", getattr(layer, "num_attention_heads", None))
    return own if own is not None else getattr(layer.config, "num_attention_heads", None)


def signed_layers(model: nn.Module) -> list[nn.Module]:
    """The signed layers of a model, in the order of `attn_negative_mass`; empty for a stock model."""
    return [module for module in model.modules() if hasattr(module, "signed_index")]


def signed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
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
        The context `[batch, queries, heads, head_dim]`, and the coefficients `[batch, heads, queries, keys]` on the
        eager path, else None.
    """
    attend_as = _stock_function(module, options) or _attend
    return attend_as(module, query, key, value, attention_mask, **options)


def _stock_function(module: nn.Module, options: dict[str, Any]) -> Callable | None:
    """The function of the stock model for a layer that computes softmax now; None if it does not, or if this call wants
    what the function does not give: coefficients or score terms from SDPA, a window, a change."""
    config, backend = module.config.bidir, module.config.stock._attn_implementation or "sdpa"
    if config.attn_activation not in ("softmax", *WITH_NEGATIVE_MASS) or config.attn_window is not None:
        return None
    if config.attn_activation != "softmax" and any(all_masses(_negative_mass(module))):
        return None
    if interventions_in(module) is not NONE:
        return None
    if backend == "eager":
        return _own_eager(type(module))  # type: ignore[arg-type]
    lacking = any(options.get(name) is not None for name in SDPA_LACKS)
    return None if backend == "fused" or lacking or wanting_coefficients.get() else SDPA


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Signed attention; arguments and result as in `signed_attention`.

    Args:
        scaling: factor on the scores, by default `head_dim ** -0.5`.
        is_causal: without a mask, query `i` attends to the keys `j <= i`; by default as the layer says.
        position_bias: added to the scores, `[batch or 1, heads, queries, keys]`; may contain a mask as well.
        softcap: scores become `softcap * tanh(scores / softcap)`.
        s_aux: `[heads]`, the score of an extra key without a value, which enters the normaliser only.
        others: refused if the layer's own attention function uses them, else ignored.
    """
    _refuse_unsupported(module, others)
    changes = interventions_in(module)
    if changes.project:
        query, key, value = changes.project(query, key, value)
    backend = module.config.stock._attn_implementation or "sdpa"
    keep, bias = keep_and_bias(attention_mask, position_bias, omit_zero_bias=backend != "eager")
    causal = attention_mask is None and backend != "eager" and _is_causal(module, is_causal, query)
    query, key, value = same_batch(query, key, value)
    keep, causal, window = _window(module, keep, causal, others.get("sliding_window"))
    check_shapes(query, key, value, keep)
    activation, mass = module.config.bidir.attn_activation, _negative_mass(module)
    dropout = dropout if module.training else 0.0
    terms = {"bias": bias, "softcap": softcap, "sinks": s_aux}
    call = attention_call(query, key, activation, mass, scaling, dropout, causal, window, **terms)
    coefficients_needed = changes.edit or backend == "eager" or wanting_coefficients.get()
    implementation = "eager" if coefficients_needed else backend.replace("sdpa", "auto")
    context, coefficients = attend(query, key, value, without_dropped(module, keep), call, implementation)
    if changes.edit and coefficients is not None:
        coefficients = changes.edit(coefficients)
        context = grouped_matmul(coefficients, value)
    context = context.transpose(1, 2).contiguous()
    if changes.observe:
        changes.observe(module, key, value, context)
    return context, coefficients


def _negative_mass(layer: nn.Module) -> float | list[float]:
    return layer_negative_mass(layer.config.bidir, layer.signed_index, layer.signed_count)


def _window(
    layer: nn.Module, keep: Tensor | None, causal: bool, sliding: int | None
) -> tuple[Tensor | None, bool, int | None]:
    """Keep-mask, causality and window of a call: a mask that is just a sliding window becomes the latter two.

    The keys outside the window are then skipped, on every path but the eager one.
    """
    backend, config = layer.config.stock._attn_implementation, layer.config.bidir
    can_skip = backend != "eager" and config.attn_activation == "tanhmax" and _negative_mass(layer) != 0
    if can_skip and sliding and config.attn_window is None and _is_sliding_window(keep, sliding):
        return None, True, sliding - 1
    return keep, causal, config.attn_window


def _refuse_unsupported(module: nn.Module, others: dict[str, Any]) -> None:
    """Raise ValueError for arguments that would change the result and are not supported."""
    found = [name for name, value in others.items() if value is not None and name in module.config.refused]
    if found:
        raise ValueError(
            f"{type(module).__name__} passes {', '.join(found)} to its attention function, which signed attention does "
            "not support; omit the argument if it comes from your call, or use the softmax model."
        )


def _is_sliding_window(keep: Tensor | None, sliding: int) -> bool:
    """Whether a mask keeps exactly the keys `i - sliding < j <= i` of each query `i`, as it does without padding."""
    if keep is None or keep.shape[2] != keep.shape[3] or sliding < 2 or _is_captured(keep):
        return False
    length, call = keep.shape[2], AttentionCall(causal=True, window=sliding - 1)
    blocks = (slice(first, min(first + MASK_ROWS, length)) for first in range(0, length, MASK_ROWS))
    bands = ((rows, call.band(rows, slice(0, length), keep.device)) for rows in blocks)
    return all(band is not None and bool((keep[:, :, rows] == band).all()) for rows, band in bands)


def _is_captured(x: Tensor) -> bool:
    """Whether operations are captured as a graph, which must not depend on the values of a tensor."""
    capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or capturing


def _is_causal(module: nn.Module, is_causal: bool | None, query: Tensor) -> bool:
    """Whether attention without a mask is causal, by the rules of transformers' own SDPA function."""
    return query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal)


def without_dropped(module: nn.Module, keep: Tensor | None) -> Tensor | None:
    """The keep-mask, without the keys that the running call drops."""
    kept = interventions_in(module).keep
    if kept is None:
        return keep
    return kept if keep is None else keep & kept


def _before_forward(model: PreTrainedModel, args: tuple, kwargs: dict) -> None:
    """With `output_attentions`, every layer takes the eager path during the call."""
    if not _attentions_requested(model, kwargs):
        return
    wanting_coefficients.set((*wanting_coefficients.get(), model))
    if torch.compiler.is_compiling():
        return
    graphs.stop()
    if model.config._attn_implementation != "eager":
        logger.warning_once(
            "signed attention: a call with output_attentions=True uses the eager path, which returns coefficients."
        )


def _after_forward(model: PreTrainedModel, args: tuple, kwargs: dict, outputs: Any) -> None:
    wanting = wanting_coefficients.get()
    if not wanting or wanting[-1] is not model:  # `_before_forward` did not see a request, or did not run
        return
    wanting_coefficients.set(wanting[:-1])
    if not torch.compiler.is_compiling():
        graphs.resume()


def _attentions_requested(model: PreTrainedModel, kwargs: dict) -> bool:
    requested = kwargs.get("output_attentions")
    return bool(getattr(model.config, "output_attentions", False) if requested is None else requested)


def _no_stock_layer(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    raise ValueError(
        f'attn_implementation="fused" needs a signed layer, and {type(module).__name__} is not signed; use "sdpa".'
    )


def _fused_mask(*args: Any, mask_function: Callable = bidirectional_mask_function, **kwargs: Any) -> Tensor | None:
    """As for SDPA, but a padding mask is `[batch, 1, 1, keys]`: one row for all queries lets the kernel skip blocks."""
    mask = sdpa_mask(*args, mask_function=mask_function, **kwargs)
    padding_only = mask_function is bidirectional_mask_function and mask is not None
    return mask[:, :, :1] if padding_only else mask


# transformers rejects unknown backend names, and omits the mask for backends without a registered mask function
AttentionInterface.register("fused", _no_stock_layer)
AttentionMaskInterface.register("fused", _fused_mask)
for _name in BACKENDS:
    AttentionInterface.register(SIGNED + _name, signed_attention)
