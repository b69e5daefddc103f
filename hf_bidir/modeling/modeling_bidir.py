"""Models with signed attention: `Bidir` + the name of any transformers model class, created on first access."""

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from .compat import (
    CAN_RECORD,
    attn_implementation,
    checkpoint_names,
    register_checkpoint_names,
    register_heads,
    stock_heads,
)
from .configuration_bidir import (
    PREFIX,
    bidir_config,
    check_bidir_config,
    check_layers,
    config_of_class,
    is_softmax,
    signed_config_class,
    stock_class,
)
from .outside_attention import outside_class, outside_layers, unsignable
from .signed_layers import (
    SignedConfig,
    attention_layers,
    check_attn_implementation,
    heads_of,
    refused_options,
    requests,
    selects_keys,
    signed_layers,
)

if TYPE_CHECKING:  # transformers 5.0 copies only the files that this one imports directly, so it imports all
    from .activations import tanhmax  # noqa: F401
    from .attention import bidir_attention  # noqa: F401
    from .attention_call import AttentionCall  # noqa: F401
    from .eager_attention import eager_attention  # noqa: F401

logger = logging.get_logger(__name__)

_Stock: Any = object  # type checkers accept what a mixin inherits from the class beside it


class BidirMixin(_Stock):
    """Base class of every signed model; precedes the stock class in the bases of a signed class.

    Weights, initialisation and state-dict keys are the stock ones. A softmax checkpoint therefore loads completely, and
    with `attn_activation="softmax"` or `attn_negative_mass=0` the model equals the stock model.
    """

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, with the negative masses of the layers that the model still has.

        A model that FSDP has sharded is saved under the name of its signed class.
        """
        made = type(self)
        if made.__module__.startswith("torch."):  # derived by FSDP in a file of torch, which would be saved as code
            base = next(base for base in made.__mro__ if base.__module__ == __name__)
            made.__module__ = __name__
            made.__name__ = made.__qualname__ = base.__name__
        config = self.config  # type: ignore[has-type]
        if isinstance(config.attn_negative_mass, list) and (layers := signed_layers(self)):
            self.config = copy.copy(config)  # of the layers that are left
            self.config.attn_negative_mass = [config.attn_negative_mass[layer.signed_index] for layer in layers]
        try:
            return super().save_pretrained(*args, **kwargs)
        finally:
            self.config = config

    @classmethod
    def is_custom_code(cls) -> bool:
        """False: the modules are transformers' own, so missing weights are initialised as in the stock model."""
        return False


def sign(model: PreTrainedModel, config: PretrainedConfig) -> None:
    """Sign the layers of a model as `config` says, which becomes its config. A failure changes nothing.

    A part with the same config, such as the encoder below a head, gets its own signed class, so that it can be saved.
    """
    before = model.config
    sign_layers(model, config)
    replace_config(model, before, config)
    for part in model.modules():
        if part is model or isinstance(part, BidirMixin) or not isinstance(part, PreTrainedModel):
            continue
        if part.config is config and _is_public(type(part)):
            part.__class__ = signed_class(type(part))
        else:
            part.save_pretrained = _refuse_to_save_part


def _refuse_to_save_part(*args: Any, **kwargs: Any) -> None:
    raise ValueError(
        "this part of a signed model cannot be saved by itself: transformers has no class for it, or its config has no "
        "fields of signed attention, so it would be loaded as softmax. Save the whole model; a part that has a Bidir… "
        "class can be loaded from there."
    )


def sign_layers(model: PreTrainedModel, config: PretrainedConfig) -> None:
    """Make every attention layer of a model signed, as `config` says. A failure changes nothing.

    With `attn_partial` in the config, only those that use the interface.

    Raises:
        ValueError: the model has no softmax attention, or some that cannot be signed; or a list of negative masses does
            not match the layers.
    """
    inside = attention_layers(model)
    outside = [*outside_layers(model).values()]
    _check_signable(model, inside, outside, config.attn_partial)
    chosen = {*inside} if config.attn_partial else {*inside, *outside}
    layers = [module for module in model.modules() if module in chosen]
    check_layers(config.attn_negative_mass, [heads_of(layer) for layer in layers])
    for index, layer in enumerate(layers):
        stock = getattr(layer, "config", model.config)
        stock = config if stock is model.config else stock
        refused = refused_options(layer) if layer in inside else ()
        view = SignedConfig(stock, config, index, len(layers), refused)
        layer.signed_index = index
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


def _check_signable(model: PreTrainedModel, inside: list[nn.Module], outside: list[nn.Module], partial: bool) -> None:
    name = type(model).__name__
    if not inside and (partial or not outside):
        raise ValueError(
            f"{name} has no layer that computes softmax attention{' by the interface' if partial else ''}. "
            "`hf-bidir families` lists the model types that can be signed."
        )
    for layer in inside:
        # the stock layer masks the other keys itself, but for the names "eager" and "sdpa" alone
        if selects_keys(type(layer)):
            raise ValueError(
                f"{name} has attention that cannot be signed: {type(layer).__name__} selects keys by index."
            )
    keep = " To keep it as it is: signed(model, partial=True), --partial, attn_partial in the config."
    for layer in () if partial else outside:
        if why := unsignable(type(layer)):
            raise ValueError(
                f"{name} has attention that cannot be signed: {type(layer).__name__} ({why}).{keep if inside else ''}"
            )


def _before_forward(model: PreTrainedModel, args: tuple, kwargs: dict) -> None:
    """With `output_attentions`, every layer returns coefficients, by the eager path."""
    requested = kwargs.get("output_attentions")
    if requested is None:
        requested = getattr(model.config, "output_attentions", False)
    if not requested:
        return
    requests.set((*requests.get(), model))
    if not torch.compiler.is_compiling() and attn_implementation(model.config) != "eager":
        logger.warning_once(
            "signed attention: a call with output_attentions=True uses the eager path, which returns coefficients."
        )


def _after_forward(model: PreTrainedModel, args: tuple, kwargs: dict, outputs: Any) -> None:
    models = requests.get()
    if models and models[-1] is model:  # else `_before_forward` did not see a request, or did not run
        requests.set(models[:-1])


def replace_config(model: PreTrainedModel, old: PretrainedConfig, new: PretrainedConfig) -> None:
    """Set `module.config` to `new` in every module whose config is `old`."""
    for module in model.modules():
        if vars(module).get("config") is old:
            module.config = new


def signed_class(stock: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The signed class of a model class of transformers; ValueError for other classes."""
    if not _is_public(stock):
        raise ValueError(
            f"{stock.__name__} is defined in {stock.__module__}; only models of transformers itself can be made "
            "signed, because a saved checkpoint refers to them by name."
        )
    return globals().get(PREFIX + stock.__name__) or _create_class(stock)


def _is_public(stock: type) -> bool:
    """Whether a checkpoint can refer to this class by its name in transformers."""
    return getattr(transformers, stock.__name__, None) is stock


def _create_class(stock: type[PreTrainedModel]) -> type[PreTrainedModel]:
    name = PREFIX + stock.__name__
    config_class = signed_config_class(stock.config_class)

    @functools.wraps(stock.__init__)
    def __init__(self, config=None, *args: Any, **kwargs: Any) -> None:
        # Parts that the constructor builds through Auto classes are stock if its config is; they are signed with the
        # whole model. Some constructors compare `self.config_class`, copy the config, or change its fields.
        plain = None if config is None else _stock_config(self, config, stock.config_class)
        self.__dict__["config_class"] = stock.config_class
        try:
            stock.__init__(self, plain, *args, **kwargs)
        finally:
            del self.__dict__["config_class"]
        built = self.config
        if hasattr(built, "attn_activation"):
            config = config if built is plain else copy.copy(config)
            vars(config).update(vars(built))
        else:  # a composite model built its config from its parts
            config = bidir_config(built)
        replace_config(self, built, config)
        sign(self, config)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        if self.config.attn_window is not None:  # a window needs as many queries as keys
            kwargs.setdefault("use_cache", False)
        return stock.generate(self, *args, **kwargs)

    attributes = {
        "__init__": __init__,
        "__module__": __name__,
        "__qualname__": name,
        "__doc__": stock.__doc__,
        "config_class": config_class,
    }
    if issubclass(stock, GenerationMixin):
        attributes["generate"] = functools.wraps(stock.generate)(generate)
    made: Any = type(name, (BidirMixin, stock), attributes)
    heads = stock_heads(stock.config_class.model_type)
    autos = [auto for auto, head in heads.items() if head == stock.__name__]
    made.register_for_auto_class(autos[0] if autos else "AutoModel")
    dict.__setitem__(CAN_RECORD, str(made), getattr(stock, "_can_record_outputs", None))
    # without the names of weights in checkpoints, by which transformers renames them, they would stay random
    if (names := checkpoint_names(stock.__name__)) is not None:
        register_checkpoint_names(name, names, overwrite=True)
    globals()[name] = made  # pickle looks it up here
    return made


def _stock_config(model: PreTrainedModel, config: PretrainedConfig, stock: type[PretrainedConfig]) -> PretrainedConfig:
    """A checked config with the same fields and the stock class, for a stock constructor."""
    if not hasattr(config, "attn_activation"):
        raise ValueError(
            f"expected a {model.config_class.__name__}, which has the attention fields; got {type(config).__name__}. "
            "Sign a stock model with hf_bidir.signed(model), or load a stock checkpoint with from_pretrained(name)."
        )
    check_bidir_config(config)
    check_attn_implementation(attn_implementation(config), is_softmax(config))
    return config_of_class(stock, vars(config))


def __getattr__(name: str) -> type[PreTrainedModel]:
    if not name.startswith(PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return signed_class(stock_class(name, PreTrainedModel))


register_heads()
