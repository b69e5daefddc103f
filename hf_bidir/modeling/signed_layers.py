"""Signing in place: turns any layer that uses transformers' attention interface into a signed one.

A layer looks up its attention function in `ALL_ATTENTION_FUNCTIONS` by the name in its config. Signing a layer replaces
its `config` by a view with the name of our function; everything outside the layer still sees the stock config.
"""

import inspect
from collections.abc import Callable
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
from .attention_call import attention_call, is_sliding_window
from .attention_inputs import check_shapes, keep_and_bias, same_batch
from .attention_layers import attention_layers, attention_outside, keywords, own_eager
from .configuration_bidir import all_masses, check_layers, layer_negative_mass
from .eager_attention import grouped_matmul
from .interventions import (
    NONE,
    graphs,
    intervening,
    interventions_in,
    recompute_alike,
    wanting_coefficients,
    without_dropped,
)

logger = logging.get_logger(__name__)

BACKENDS = {
    "sdpa": "the fastest exact path for the device, the default",
    "eager": "returns the coefficients",
    "fused": "always the Triton kernel, on a GPU",
}
PAGED = "paged|eager"  # the eager path of transformers' continuous batching
REGISTERED = (None, *BACKENDS, PAGED)
# Unique per module name, so that code loaded with a checkpoint does not replace functions of another version.
SIGNED = f"signed-{crc32(__name__.encode()):08x}:"
SDPA = ALL_ATTENTION_FUNCTIONS["sdpa"]  # transformers' own function
SDPA_LACKS = {"position_bias", "softcap", "s_aux"} - inspect.signature(SDPA).parameters.keys()
SPARSE = frozenset({"block_indices", "indices"})  # arguments that select keys by index
PACKED = frozenset({"cu_seq_lens_k", "cu_seq_lens_q"})  # of packed examples, which flash kernels keep apart
UNSUPPORTED = SPARSE | PACKED | {"cache"}  # and a paged cache that the attention function updates (transformers 5.0)


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
        signed_name = SIGNED + (name or "sdpa")
        if name not in REGISTERED and signed_name not in ALL_ATTENTION_FUNCTIONS:  # a kernel, also one of the Hub
            AttentionInterface.register(signed_name, signed_attention)
        return signed_name


def check_attn_implementation(name: str | None, between_tokens: bool = True) -> None:
    """Raise ValueError unless `name` is a backend with signed attention, or None (not chosen yet).

    Args:
        between_tokens: False for a model with its own scores, which no kernel supports.
    """
    known = {key: description for key, description in BACKENDS.items() if between_tokens or key != "fused"}
    if name is not None and name not in known and not (between_tokens and (name == PAGED or _is_kernel(name))):
        choices = ", ".join(f'"{key}" ({description})' for key, description in known.items())
        choices += ", flash_attention_2, 3 or 4, or flex_attention" if between_tokens else ""
        # begins like transformers' own message
        prefix = f'Specified `attn_implementation="{name}"` is not supported'
        raise ValueError(f"{prefix}: it does not compute signed attention; choose {choices}.")


def _is_kernel(name: str) -> bool:
    from .two_calls import is_kernel  # here, because a version of transformers may lack names that it imports

    return is_kernel(name)


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
    if sparse := sorted({type(m).__name__ for m in layers if SPARSE & keywords(type(m))}):  # type: ignore[arg-type]
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


def _unsupported_arguments(layer: nn.Module) -> frozenset[str]:
    """`UNSUPPORTED`, and the parameters of the layer's own eager function that `signed_attention` does not have.

    Arguments that the eager function does not name have no effect in the stock model either. A sliding window is
    already part of the mask.
    """
    parameters = inspect.signature(own_eager(type(layer)) or _attend).parameters  # type: ignore[arg-type]
    supported = inspect.signature(_attend).parameters.keys() | {"sliding_window"}
    return UNSUPPORTED | parameters.keys() - supported


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
    attend_as = _stock_function(module, options) or (_attend_by_kernel if _kernel(module) else _attend)
    return attend_as(module, query, key, value, attention_mask, **options)


def _stock_function(module: nn.Module, options: dict[str, Any]) -> Callable | None:
    """The function of the stock model for a layer that computes softmax now; None if it does not, or if this call wants
    what the function does not give: coefficients or score terms from SDPA, a window, a change."""
    config, backend = module.config.bidir, _backend(module)
    if config.attn_activation not in ("softmax", *WITH_NEGATIVE_MASS) or config.attn_window is not None:
        return None
    if config.attn_activation != "softmax" and any(all_masses(_negative_mass(module))):
        return None
    if interventions_in(module) is not NONE:
        return None
    if kernel := _kernel(module):
        from .two_calls import stock_kernel

        return None if wanting_coefficients.get() else stock_kernel(kernel)
    if backend == "eager":
        paged = module.config.stock._attn_implementation == PAGED
        return ALL_ATTENTION_FUNCTIONS[PAGED] if paged else own_eager(type(module))  # type: ignore[arg-type]
    lacking = any(options.get(name) is not None for name in SDPA_LACKS)
    return None if backend == "fused" or lacking or wanting_coefficients.get() else SDPA


def _kernel(layer: nn.Module) -> str | None:
    """The name of the flash or flex attention that a layer is to use; None for the backends of this package."""
    name = layer.config.stock._attn_implementation
    return None if name in REGISTERED else name


def _backend(layer: nn.Module) -> str:
    """Which of `BACKENDS` computes what no kernel does."""
    name = layer.config.stock._attn_implementation
    return name if name in BACKENDS else "eager" if name == PAGED else "sdpa"


def _attend_by_kernel(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """`_attend` by two calls of a stock kernel, or another exact path for what that does not compute."""
    from .two_calls import kernel_attention, plain_mask, why_not

    kernel, config, changes = _kernel(module) or "", module.config.bidir, interventions_in(module)
    _refuse_unsupported(module, options)
    obstacles = {
        "coefficients": changes.edit or wanting_coefficients.get(),
        "a change of the mask": changes.keep is not None,
        "attn_window": config.attn_window is not None,
        "dropout": module.training and options.get("dropout"),
        f"attn_activation {config.attn_activation}": config.attn_activation not in ("softmax", *WITH_NEGATIVE_MASS),
        "balanced attention with sinks": config.attn_activation == "balanced" and options.get("s_aux") is not None,
    }
    reason = next(filter(obstacles.get, obstacles), None) or why_not(kernel, query, attention_mask, options)
    if reason:
        if not torch.compiler.is_compiling():
            logger.warning_once(f"signed attention: {kernel} does not compute {reason}; another exact path does.")
        causal = _is_causal(module, options.get("is_causal"), query)
        mask = plain_mask(kernel, query, key, attention_mask, causal, options)
        return _attend(module, query, key, value, mask, **options | {"is_causal": False})
    if changes.project:
        query, key, value = changes.project(query, key, value)
    options["dropout"] = 0.0
    mass = _negative_mass(module)
    context = kernel_attention(
        module, kernel, config.attn_activation, mass, (query, key, value), attention_mask, **options
    )
    if changes.observe:
        changes.observe(module, key, value, context)
    return context, None


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
    backend = _backend(module)
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
    backend, config = _backend(layer), layer.config.bidir
    can_skip = backend != "eager" and config.attn_activation == "tanhmax" and _negative_mass(layer) != 0
    if can_skip and sliding and config.attn_window is None and is_sliding_window(keep, sliding):
        return None, True, sliding - 1
    return keep, causal, config.attn_window


def _refuse_unsupported(module: nn.Module, others: dict[str, Any]) -> None:
    """Raise ValueError for arguments that would change the result and are not supported."""
    # continuous batching, which alone writes by index, keeps examples apart in its masks as well
    apart = "write_index" in others or _kernel(module)
    refused = module.config.refused - PACKED if apart else module.config.refused
    found = [name for name, value in others.items() if value is not None and name in refused]
    if found:
        raise ValueError(
            f"{type(module).__name__} passes {', '.join(found)} to its attention function, which signed attention does "
            "not support; omit the argument if it comes from your call, or use the softmax model."
        )


def _is_causal(module: nn.Module, is_causal: bool | None, query: Tensor) -> bool:
    """Whether attention without a mask is causal, by the rules of transformers' own SDPA function."""
    return query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal)


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
for _name in (*BACKENDS, PAGED):
    AttentionInterface.register(SIGNED + _name, signed_attention)
