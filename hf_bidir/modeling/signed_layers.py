"""The mechanism: any layer that computes attention through transformers' attention interface, made signed in place.

A layer asks `ALL_ATTENTION_FUNCTIONS` for the function that its config names. Signing a layer replaces its `config` by
a view in which that name is one of ours; everything outside the layer goes on to see the stock config.
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
from transformers.utils import logging

from .attention import attend, grouped_matmul
from .attention_call import AttentionCall, attention_call
from .attention_inputs import check_shapes, keep_and_bias, same_batch
from .configuration_bidir import check_layers, layer_negative_mass

logger = logging.get_logger(__name__)

EDIT, KEEP, OBSERVE, WANTED = "edit_coefficients", "keep_keys", "observe", "coefficients_wanted"
BACKENDS = {
    "sdpa": "the fastest exact path for the device, the default",
    "eager": "returns the coefficients",
    "fused": "insists on the Triton kernel, on a GPU",
}
# of this module, not of the package: the code that came with a checkpoint must not replace that of another version
SIGNED = f"signed-{crc32(__name__.encode()):08x}:"
SOFTMAX_FUNCTIONS = {"softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}
MASK_ROWS = 256  # of a mask, looked at together
SPARSE = frozenset({"block_indices", "indices"})  # the keys that a query is limited to, in place of a mask
NOT_COMPUTED = SPARSE | {"cache", "cu_seq_lens_k", "cu_seq_lens_q"}  # and paged caches, packed examples


class SignedConfig:
    """A layer's view of its stock config: the same but for the name of the attention function.

    `bidir` is the config of the whole model, which has the attention fields; `refused` are the arguments of attention
    functions that signed attention does not compute.
    """

    def __init__(self, stock: Any, bidir: PretrainedConfig, refused: frozenset[str] = NOT_COMPUTED):
        self.__dict__.update(stock=stock, bidir=bidir, refused=refused)

    def __getattr__(self, name: str) -> Any:
        if name in ("stock", "bidir", "refused"):  # not there yet, while a copy is being made
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
    """Raise ValueError unless `name` is a backend that computes signed coefficients (None: not chosen yet).

    A model whose tokens do not attend to one another makes scores of its own, for which there is no kernel.
    """
    known = {key: told for key, told in BACKENDS.items() if between_tokens or key != "fused"}
    if name not in (None, *known):
        choices = ", ".join(f'"{key}" ({told})' for key, told in known.items())
        refused = f'Specified `attn_implementation="{name}"` is not supported'  # the words of transformers
        raise ValueError(f"{refused}: no path of that name computes signed attention; choose {choices}.")


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a model that go through transformers' attention interface, in the order of `model.modules()`."""
    return [m for m in model.modules() if "ALL_ATTENTION_FUNCTIONS" in _forward_names(type(m)) and hasattr(m, "config")]


def attention_outside(model: nn.Module) -> list[str]:
    """The names of softmax attention modules that do not go through the interface, which stay softmax when signed."""
    layers = set(attention_layers(model))
    return [
        name
        for name, module in model.named_modules()
        if module not in layers
        and (
            isinstance(module, nn.MultiheadAttention)
            or ("Att" in type(module).__name__ and SOFTMAX_FUNCTIONS & _names(type(module)))
        )
    ]


def _code(function: Callable) -> Any:
    return getattr(inspect.unwrap(function), "__code__", None) or _code.__code__


@cache
def _forward_names(module_class: type[nn.Module]) -> frozenset[str]:
    """The names that a module's `forward` reads."""
    return frozenset(_code(module_class.forward).co_names)


@cache
def _keywords(module_class: type[nn.Module]) -> frozenset[str]:
    """The names of the arguments that a module's `forward` hands on by name."""
    return frozenset(chain(*(names for names in _code(module_class.forward).co_consts if isinstance(names, tuple))))


@cache
def _names(module_class: type[nn.Module]) -> frozenset[str]:
    """The names that any method of a module reads."""
    classes = (base for base in module_class.__mro__ if issubclass(base, nn.Module) and base is not nn.Module)
    methods = (method for base in classes for method in vars(base).values() if callable(method))
    return frozenset(chain(*(_code(method).co_names for method in methods)))


def sign_layers(model: PreTrainedModel) -> None:
    """Make every attention layer of a model signed, as `model.config` says.

    Raises:
        ValueError: there is no such layer, or some attention is outside the interface (named) and the config's
            `attn_partial` does not accept that, or the length of a list of negative masses is not that of the layers.
    """
    layers, name = attention_layers(model), type(model).__name__
    outside = attention_outside(model)
    if not layers:
        where = f"; its attention is in {_listed(outside)}" if outside else ""
        raise ValueError(
            f"{name} has no layer that computes attention through transformers' attention interface{where}. "
            "`hf-bidir families` lists the model types that can be signed."
        )
    if sparse := sorted({type(layer).__name__ for layer in layers if SPARSE & _keywords(type(layer))}):
        raise ValueError(
            f"{name} limits its queries to keys chosen by index ({_listed(sparse)}), which signed attention does not "
            "compute; use a model with dense attention."
        )
    if outside and not model.config.attn_partial:
        raise ValueError(
            f"{name} computes some attention outside transformers' attention interface, which would stay softmax: "
            f"{_listed(outside)}. To accept that: signed(model, partial=True), --partial, attn_partial in the config."
        )
    check_layers(model.config.attn_negative_mass, [heads_of(layer) for layer in layers])
    for index, layer in enumerate(layers):
        layer.signed_index, layer.signed_count = index, len(layers)
        layer.config = SignedConfig(layer.config, model.config, _not_computed(layer))
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.register_forward_pre_hook(_want_coefficients, with_kwargs=True)
            part.register_forward_hook(_have_coefficients, with_kwargs=True, always_call=True)
            if part.config is not model.config:
                part.save_pretrained = _refuse_to_save_part


def _refuse_to_save_part(*args: Any, **kwargs: Any) -> None:
    raise ValueError(
        "the config of this part of a signed model knows nothing of signed attention, so it would be saved as softmax; "
        "save the whole model, and load the part from it with its Bidir… class."
    )


def _not_computed(layer: nn.Module) -> frozenset[str]:
    """What signed attention has to refuse: also what the layer's own eager function names and this one does not.

    What it does not name changes nothing there either. A sliding window is in the mask already.
    """
    own = inspect.unwrap(type(layer).forward).__globals__.get("eager_attention_forward", signed_attention)
    return NOT_COMPUTED | inspect.signature(own).parameters.keys() - {"sliding_window"}


def _listed(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def heads_of(layer: nn.Module) -> int | None:
    """The number of heads where the layer says it; a wrong count is refused by the first forward pass otherwise."""
    own = getattr(layer, "num_heads", getattr(layer, "num_attention_heads", None))
    return own if own is not None else getattr(layer.config, "num_attention_heads", None)


def signed_layers(model: nn.Module) -> list[nn.Module]:
    """The signed layers of a model, in the order in which `attn_negative_mass` counts them; none in a stock model."""
    return [module for module in model.modules() if hasattr(module, "signed_index")]


def signed_attention(
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
    """An attention function as transformers' `AttentionInterface` wants it, with signed coefficients.

    Args:
        module: a signed layer.
        query, key, value: `[batch, heads, length, head_dim]`; keys and values may have fewer heads, and their batch or
            the query's may be 1.
        attention_mask: None, boolean, or float: what is at most -50 is masked, the rest is added to the scores.
        scaling: factor on the scores, by default `head_dim ** -0.5`.
        is_causal: without a mask, query `i` sees the keys `j <= i`; by default what the layer says.
        position_bias: the same, `[batch or 1, heads, queries, keys]`.
        softcap: scores become `softcap * tanh(scores / softcap)`.
        s_aux: one score per head of a key without a value, which takes part in the normaliser alone.
        others: refused where the layer's own attention function computes with it, else ignored as it is there.

    Returns:
        The context `[batch, queries, heads, head_dim]`, and the coefficients `[batch, heads, queries, keys]` on the
        eager path, else None.
    """
    _refuse_unknown(module, others)
    backend, config = module.config.stock._attn_implementation or "sdpa", module.config.bidir
    keep, bias = keep_and_bias(attention_mask, position_bias, looked_at=backend != "eager")
    causal = attention_mask is None and backend != "eager" and _is_causal(module, is_causal, query)
    window, sliding = config.attn_window, others.get("sliding_window")
    mass = layer_negative_mass(config, module.signed_index, module.signed_count)
    skips = backend != "eager" and config.attn_activation == "tanhmax" and mass != 0
    if skips and sliding and window is None and _is_sliding_window(keep, sliding):
        keep, causal, window = None, True, sliding - 1
    query, key, value = same_batch(query, key, value)
    check_shapes(query, key, value, keep)
    call = attention_call(
        query,
        key,
        config.attn_activation,
        mass,
        scaling,
        dropout if module.training else 0.0,
        causal,
        window,
        bias=bias,
        softcap=softcap,
        sinks=s_aux,
    )
    edit = getattr(module, EDIT, None)
    coefficients_wanted = edit or backend == "eager" or getattr(module, WANTED, False)
    implementation = "eager" if coefficients_wanted else backend.replace("sdpa", "auto")
    context, coefficients = attend(query, key, value, without_dropped(module, keep), call, implementation)
    if edit:
        coefficients = edit(coefficients)
        context = grouped_matmul(coefficients, value)
    context = context.transpose(1, 2).contiguous()
    if observe := getattr(module, OBSERVE, None):
        observe(module, key, value, context)
    return context, coefficients


def _refuse_unknown(module: nn.Module, others: dict[str, Any]) -> None:
    """Raise ValueError for arguments that would change coefficients and that nothing here computes."""
    unknown = [name for name, value in others.items() if value is not None and name in module.config.refused]
    if unknown:
        raise ValueError(
            f"{type(module).__name__} hands {', '.join(unknown)} to its attention function, which signed attention "
            "does not compute; leave it out if it comes from your call, or use the softmax model."
        )


def _is_sliding_window(keep: Tensor | None, sliding: int) -> bool:
    """Whether a mask keeps just the keys `i - sliding < j <= i` of each query `i`, as it does without padding; then
    what is out of reach need not be computed."""
    if keep is None or keep.shape[2] != keep.shape[3] or sliding < 2 or _is_recorded(keep):
        return False
    length, call = keep.shape[2], AttentionCall(causal=True, window=sliding - 1)
    blocks = (slice(first, min(first + MASK_ROWS, length)) for first in range(0, length, MASK_ROWS))
    return all(bool((keep[:, :, rows] == call.band(rows, slice(0, length), keep.device)).all()) for rows in blocks)


def _is_recorded(x: Tensor) -> bool:
    """Whether operations become a graph, into which the values of a tensor must not go."""
    capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or capturing


def _is_causal(module: nn.Module, is_causal: bool | None, query: Tensor) -> bool:
    """Whether no mask means a causal one, by the rules of transformers' own SDPA function."""
    return query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal)


def without_dropped(module: nn.Module, keep: Tensor | None) -> Tensor | None:
    """The keep-mask without the keys that `kept_keys` leaves out."""
    kept = getattr(module, KEEP, None)
    if kept is None:
        return keep
    return kept if keep is None else keep & kept


def _want_coefficients(model: PreTrainedModel, args: tuple, kwargs: dict) -> None:
    """Before a forward pass that is asked for attentions: every layer takes the path that has them."""
    asked = _asked_for(model, kwargs)
    if asked and model.config._attn_implementation != "eager" and not torch.compiler.is_compiling():
        logger.warning_once(
            "signed attention: a call with output_attentions=True takes the eager path, which has the coefficients."
        )
    if asked or getattr(model, WANTED, False):
        _set_wanted(model, asked)


def _have_coefficients(model: PreTrainedModel, args: tuple, kwargs: dict, outputs: Any) -> None:
    """After it: back to the fast path; where the backward pass runs layers again, only with the next forward pass."""
    recomputed = model.training and any(getattr(part, "gradient_checkpointing", False) for part in model.modules())
    if _asked_for(model, kwargs) and not recomputed:
        _set_wanted(model, False)


def _set_wanted(model: PreTrainedModel, wanted: bool) -> None:
    for module in (model, *signed_layers(model)):
        setattr(module, WANTED, wanted)


def _asked_for(model: PreTrainedModel, kwargs: dict) -> bool:
    requested = kwargs.get("output_attentions")
    return bool(getattr(model.config, "output_attentions", False) if requested is None else requested)


def _no_stock_layer(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    raise ValueError(
        f'attn_implementation="fused" belongs to signed layers, and {type(module).__name__} is none; choose "sdpa".'
    )


def _fused_mask(*args: Any, mask_function: Callable = bidirectional_mask_function, **kwargs: Any) -> Tensor | None:
    """As for SDPA, but padding alone is `[batch, 1, 1, keys]`: one row for all queries lets the kernel skip blocks."""
    mask = sdpa_mask(*args, mask_function=mask_function, **kwargs)
    padding_alone = mask_function is bidirectional_mask_function and mask is not None
    return mask[:, :, :1] if padding_alone else mask


# transformers rejects unknown backend names, and drops the mask for backends without a registered mask function
AttentionInterface.register("fused", _no_stock_layer)
AttentionMaskInterface.register("fused", _fused_mask)
for _name in BACKENDS:
    AttentionInterface.register(SIGNED + _name, signed_attention)
