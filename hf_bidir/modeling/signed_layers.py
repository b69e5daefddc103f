"""Signing in place: turns any layer that uses transformers' attention interface into a signed one.

A layer looks up its attention function in `ALL_ATTENTION_FUNCTIONS` by the name in its config. Signing a layer replaces
its `config` by a view with the name of our function; everything outside the layer still sees the stock config.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from .attention_layers import UNSIGNABLE, attention_layers, keywords, mixers, outside_layers, own_eager
from .compat import (
    ATTN_IMPLEMENTATION,
    attn_implementation,
    bidirectional_mask_function,
    is_kernel,
    raw_attribute,
    sdpa_mask,
)
from .configuration_bidir import check_layers
from .interventions import graphs, intervening, recompute_alike, wanting_coefficients
from .outside_attention import OutsideAttention, outside_class
from .own_attention import is_own_function
from .signed_attention import (
    BACKENDS,
    PAGED,
    REGISTERED,
    SPARSE,
    SUPPORTED,
    UNSUPPORTED,
    heads_of,
    signed_attention,
)

logger = logging.get_logger(__name__)

# Unique per module name, so that code loaded with a checkpoint does not replace functions of another version.
SIGNED = f"signed-{crc32(__name__.encode()):08x}:"


class SignedConfig:
    """A layer's view of its stock config, with another name of the attention function; `bidir` is the config of the
    whole model, `refused` are arguments of the attention function that signed attention does not support."""

    def __init__(self, stock: Any, bidir: PretrainedConfig, refused: Iterable[str] = UNSUPPORTED):
        self.__dict__.update(stock=stock, bidir=bidir, refused=tuple(refused))

    def __getstate__(self) -> dict[str, Any]:
        """Without the plan, whose tensors are on a device that may not exist where it is read."""
        return {name: value for name, value in self.__dict__.items() if name != "plan"}

    def __getattr__(self, name: str) -> Any:
        if name in ("stock", "bidir", "refused"):  # not yet set while the object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.stock, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.stock, name, value)

    @property
    def _attn_implementation(self) -> str:
        name = raw_attribute(self.stock, "__dict__").get(ATTN_IMPLEMENTATION)
        return _SIGNED_NAMES.get(name) or _signed_name(attn_implementation(self.stock))


_SIGNED_NAMES = {name: SIGNED + name for name in (*BACKENDS, PAGED)}


def _signed_name(name: str | None) -> str:
    """The name of the signed function in place of the stock function `name`."""
    check_attn_implementation(name, softmax=True)  # the plan of the layer knows λ
    signed_name = SIGNED + (name or "sdpa")
    if name not in REGISTERED and signed_name not in ALL_ATTENTION_FUNCTIONS:  # a kernel, also one of the Hub
        AttentionInterface.register(signed_name, signed_attention)
    return signed_name


def check_attn_implementation(name: str | None, between_tokens: bool = True, softmax: bool = False) -> None:
    """Raise ValueError unless `name` is a backend with signed attention, or None (not chosen yet); kernels support no
    model with its own scores (`between_tokens=False`), and functions of users only `λ = 0` (`softmax`)."""
    if softmax and between_tokens and is_own_function(name):
        return
    known = {key: description for key, description in BACKENDS.items() if between_tokens or key != "fused"}
    if name is not None and name not in known and not (between_tokens and (name == PAGED or is_kernel(name))):
        choices = ", ".join(f'"{key}" ({description})' for key, description in known.items())
        choices += ", flash_attention_2, 3 or 4, or flex_attention" if between_tokens else ""
        # begins like transformers' own message
        prefix = f'Specified `attn_implementation="{name}"` is not supported'
        raise ValueError(f"{prefix}: it does not compute signed attention; choose {choices}.")


def sign_layers(model: PreTrainedModel, config: PretrainedConfig) -> None:
    """Make every attention layer of a model signed, as `config` says. A failure changes nothing.

    With `attn_partial` in the config, only those that use the interface.

    Raises:
        ValueError: the model has no softmax attention, or some that cannot be signed; or a list of negative masses does
            not match the layers.
    """
    inside, outside = attention_layers(model), outside_layers(model)
    _check_signable(model, inside, outside, config.attn_partial)
    chosen = {*inside, *(() if config.attn_partial else outside.values())}
    layers = [module for module in model.modules() if module in chosen]
    check_layers(config.attn_negative_mass, [heads_of(layer) for layer in layers])
    config.attn_negative_mass = _masses_by_name(model, layers, config)
    views = []
    for layer in layers:
        own = getattr(layer, "config", model.config)
        stock = config if own is model.config else own
        views.append(SignedConfig(stock, config, _unsupported_arguments(layer) if layer in inside else ()))
    for index, (layer, view) in enumerate(zip(layers, views, strict=True)):
        layer.signed_index, layer.signed_count, layer.intervening = index, len(layers), intervening
        layer.signed_view = view
        if layer in inside:
            layer.config = view
        else:
            layer.__class__ = outside_class(type(layer))  # type: ignore[arg-type]
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.signed_hooks = (
                part.register_forward_pre_hook(_before_forward, with_kwargs=True),
                part.register_forward_hook(_after_forward, with_kwargs=True, always_call=True),
            )
    recompute_alike(model)


def unsign_layers(model: PreTrainedModel, config: PretrainedConfig) -> None:
    """Undo `sign_layers`; layers that had the config of the model get this one."""
    for layer in signed_layers(model):
        view = layer.signed_view
        if isinstance(layer, OutsideAttention):
            layer.__class__ = layer.stock_class
        else:
            layer.config = config if view.stock is view.bidir else view.stock
        for name in ("signed_index", "signed_count", "intervening", "signed_view"):
            delattr(layer, name)
    for part in model.modules():
        for hook in vars(part).pop("signed_hooks", ()):
            hook.remove()


def _check_signable(
    model: PreTrainedModel, inside: list[nn.Module], outside: dict[str, nn.Module], partial: bool
) -> None:
    name, classes = type(model).__name__, {type(layer).__name__ for layer in outside.values()}
    if not inside and (partial or not outside):
        kept = f"; partial=True keeps softmax in {_listed(list(outside))}" if outside else ""
        instead = f"; it has {found} instead" if not outside and (found := mixers(model)) else ""
        raise ValueError(
            f"{name} has no layer that computes softmax attention{instead}{kept}. "
            "`hf-bidir families` lists the model types that can be signed."
        )
    if sparse := sorted({type(m).__name__ for m in inside if SPARSE & keywords(type(m))}):  # type: ignore[arg-type]
        raise ValueError(
            f"{name} limits its queries to keys chosen by index ({_listed(sparse)}), which signed attention does not "
            "compute; use a model with dense attention."
        )
    reasons = {kind: why for kind in sorted(classes) for end, why in UNSIGNABLE.items() if kind.endswith(end)}
    if reasons and not partial:
        kind, why = next(iter(reasons.items()))
        keep = " To keep it as it is: signed(model, partial=True), --partial, attn_partial in the config."
        raise ValueError(f"{name} has attention that cannot be signed: {kind} ({why}).{keep if inside else ''}")


def layer_names(model: PreTrainedModel, layers: list[nn.Module]) -> list[str]:
    """The names of layers, without the prefix that a model with a head adds."""
    names, prefix = {module: name for name, module in model.named_modules()}, f"{model.base_model_prefix}."
    return [names[layer].removeprefix(prefix) for layer in layers]


def _masses_by_name(model: PreTrainedModel, layers: list[nn.Module], config: PretrainedConfig) -> Any:
    """`attn_negative_mass` in the order of the layers, where a checkpoint names those of its list; ValueError if it
    names others."""
    masses, saved = config.attn_negative_mass, getattr(config, "attn_layers", None)
    if not isinstance(masses, list) or not saved:
        return masses
    names = layer_names(model, layers)
    if sorted(saved) != sorted(names):
        other = next(name for name in saved if name not in names)
        raise ValueError(
            f"the checkpoint has an attn_negative_mass for the layer {other}, and {type(model).__name__} of this "
            f"transformers has {_listed(names)}. If they are the same, take attn_layers out of config.json."
        )
    config.attn_layers = names
    return [masses[saved.index(name)] for name in names]


def _unsupported_arguments(layer: nn.Module) -> frozenset[str]:
    """`UNSUPPORTED`, and the parameters of the layer's own eager function that `signed_attention` does not have.

    Arguments that the eager function does not name have no effect in the stock model either.
    """
    eager = own_eager(type(layer))  # type: ignore[arg-type]
    parameters = inspect.signature(eager).parameters.keys() if eager else set()
    return UNSUPPORTED | parameters - SUPPORTED


def _listed(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def signed_layers(model: nn.Module) -> list[nn.Module]:
    """The signed layers of a model, in the order of `attn_negative_mass`; empty for a stock model."""
    return [module for module in model.modules() if hasattr(module, "signed_index")]


def _before_forward(model: PreTrainedModel, args: tuple, kwargs: dict) -> None:
    """With `output_attentions`, every layer takes the eager path during the call."""
    if not _attentions_requested(model, kwargs):
        return
    wanting_coefficients.set((*wanting_coefficients.get(), model))
    if torch.compiler.is_compiling():
        return
    graphs.stop()
    if attn_implementation(model.config) != "eager":
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
if sdpa_mask is not None:
    AttentionMaskInterface.register("fused", _fused_mask)
for _name in (*BACKENDS, PAGED):
    AttentionInterface.register(SIGNED + _name, signed_attention)
