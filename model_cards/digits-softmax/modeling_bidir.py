"""Models with signed attention: `Bidir` + the name of any transformers model class, created on first access."""

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from .compat import CAN_RECORD, attn_implementation, checkpoint_names, register_checkpoint_names, register_head
from .configuration_bidir import (
    PREFIX,
    all_masses,
    bidir_config,
    check_bidir_config,
    check_layers,
    config_of_class,
    is_softmax,
    signed_config_class,
    stock_class,
    stock_heads,
)
from .outside_attention import UNSIGNABLE, outside_class, outside_layers
from .signed_layers import (
    PAGED,
    SignedConfig,
    attention_layers,
    check_attn_implementation,
    heads_of,
    recompute_alike,
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

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any):
        """As in transformers; refuses backends without signed attention before any download."""
        cls._check_backend(kwargs.get("attn_implementation"))
        return super().from_pretrained(*args, **kwargs)

    def set_attn_implementation(self, attn_implementation: str | dict, *args: Any, **kwargs: Any) -> None:
        """As in transformers; refuses backends without signed attention."""
        self._check_backend(attn_implementation, is_softmax(self.config))
        super().set_attn_implementation(attn_implementation, *args, **kwargs)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; a model that FSDP has sharded is saved under the name of its signed class."""
        layers, config = signed_layers(self), self.config  # type: ignore[has-type]
        whole = layers[0].signed_view.count if layers else 0
        if isinstance(config.attn_negative_mass, list) and layers:
            # of the layers that are left; with their names, because a later transformers may list them in another order
            masses = [config.attn_negative_mass[layer.signed_index] for layer in layers]
            self.config = copy.copy(config)
            vars(self.config).update(attn_negative_mass=masses, attn_layers=layer_names(self, layers))
        made = type(self)
        if made.__module__.startswith("torch."):  # derived by FSDP in a file of torch, which would be saved as code
            base = next(base for base in made.__mro__ if not base.__module__.startswith("torch."))
            made.__module__, made.__name__, made.__qualname__ = base.__module__, base.__name__, base.__qualname__
        try:
            if len(layers) != whole:
                _check_loadable(self, len(layers), whole)
            return super().save_pretrained(*args, **kwargs)
        finally:
            self.config = config

    def extra_repr(self) -> str:
        """The attention activation and λ, for `repr(model)`."""
        masses = sorted(set(map(float, all_masses(self.config.attn_negative_mass))))
        ends = dict.fromkeys([masses[0], masses[-1]])
        return f"attention: {self.config.attn_activation}, λ = {' to '.join(f'{mass:g}' for mass in ends)}"

    @classmethod
    def is_custom_code(cls) -> bool:
        """False: the modules are transformers' own, so missing weights are initialised as in the stock model."""
        return False

    @classmethod
    def _check_backend(cls, attn_implementation: str | dict | None, softmax: bool = False) -> None:
        if isinstance(attn_implementation, dict):  # one backend per part of a composite model
            for part in attn_implementation.values():
                cls._check_backend(part, softmax)
            return
        if attn_implementation and attn_implementation != PAGED:
            attn_implementation = attn_implementation.removeprefix("paged|")  # as transformers does
        check_attn_implementation(attn_implementation, softmax)


def sign(model: PreTrainedModel, config: PretrainedConfig) -> None:
    """Sign the layers of a model as `config` says, which becomes its config. A failure changes nothing.

    A part with the same config, such as the encoder below a head, gets its own signed class, so that it can be saved.
    """
    before = model.config
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel) and part is not model]
    made = {part: signed_class(type(part)) for part in parts if part.config is before and _is_public(type(part))}
    sign_layers(model, config)
    replace_config(model, before, config)
    for part in parts:
        if part in made:
            part.__class__ = made[part]
        elif not isinstance(part, BidirMixin):
            part.save_pretrained = _refuse_to_save_part


def stock_base(made: type[BidirMixin]) -> Any:
    """The class that a signed class was made from."""
    return next(base for base in made.__mro__ if not issubclass(base, BidirMixin))


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
    inside, outside = attention_layers(model), outside_layers(model)
    _check_signable(model, inside, outside, config.attn_partial)
    chosen = {*inside, *(() if config.attn_partial else outside.values())}
    layers = [module for module in model.modules() if module in chosen]
    check_layers(config.attn_negative_mass, [heads_of(layer) for layer in layers])
    config.attn_negative_mass = _masses_by_name(model, layers, config)
    refused = {layer: refused_options(layer) for layer in inside}
    for index, layer in enumerate(layers):
        stock = getattr(layer, "config", model.config)
        stock = config if stock is model.config else stock
        view = SignedConfig(stock, config, index, len(layers), refused.get(layer, ()))
        layer.signed_index, layer.signed_view = index, view
        if layer in refused:
            layer.config = view
        else:
            layer.__class__ = outside_class(type(layer))  # type: ignore[arg-type]
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.signed_hooks = (
                part.register_forward_pre_hook(_before_forward, with_kwargs=True),
                part.register_forward_hook(_after_forward, with_kwargs=True, always_call=True),
            )


def _check_signable(
    model: PreTrainedModel, inside: list[nn.Module], outside: dict[str, nn.Module], partial: bool
) -> None:
    name, classes = type(model).__name__, {type(layer).__name__ for layer in outside.values()}
    if not inside and (partial or not outside):
        kept = f"; partial=True keeps softmax in {_listed(list(outside))}" if outside else ""
        raise ValueError(
            f"{name} has no layer that computes softmax attention{kept}. "
            "`hf-bidir families` lists the model types that can be signed."
        )
    if sparse := sorted({type(layer).__name__ for layer in inside if selects_keys(layer)}):
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


def _listed(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _before_forward(model: PreTrainedModel, args: tuple, kwargs: dict) -> None:
    """With `output_attentions`, every layer returns coefficients, by the eager path."""
    requested = kwargs.get("output_attentions")
    if not (getattr(model.config, "output_attentions", False) if requested is None else requested):
        return
    compiling = torch.compiler.is_compiling()
    requests.set((*requests.get(), [model, False, (lambda: None) if compiling else recompute_alike(model)]))
    if not compiling and attn_implementation(model.config) != "eager":
        logger.warning_once(
            "signed attention: a call with output_attentions=True uses the eager path, which returns coefficients."
        )


def _after_forward(model: PreTrainedModel, args: tuple, kwargs: dict, outputs: Any) -> None:
    running = requests.get()
    if not running or running[-1][0] is not model:  # `_before_forward` did not see a request, or did not run
        return
    _, returned, undo = running[-1]
    undo()
    requests.set(running[:-1])
    returned = returned or outputs is None or torch.compiler.is_compiling()
    if not returned and (compiled := _compiled_part(model)):
        raise ValueError(
            f"{compiled} of this {type(model).__name__} is compiled by itself, and returns no coefficients for "
            'output_attentions=True; compile the whole model, or use attn_implementation="eager".'
        )


def _compiled_part(model: nn.Module) -> str | None:
    """The name of a part that torch.compile runs by itself and that has signed layers."""
    for name, part in model.named_modules():
        compiled = hasattr(part, "_orig_mod") or vars(part).get("_compiled_call_impl") is not None
        if compiled and part is not model and signed_layers(part):
            return name
    return None


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
    name, config_class = PREFIX + stock.__name__, signed_config_class(stock.config_class)

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

    made: Any = type(
        name,
        (BidirMixin, stock),
        {
            "__init__": __init__,
            **({"generate": functools.wraps(stock.generate)(generate)} if issubclass(stock, GenerationMixin) else {}),
            "__module__": __name__,
            "__qualname__": name,
            "__doc__": stock.__doc__,
            "config_class": config_class,
        },
    )
    autos = [auto for auto, head in stock_heads(stock.config_class.model_type).items() if head == stock.__name__]
    made.register_for_auto_class(autos[0] if autos else "AutoModel")
    dict.__setitem__(CAN_RECORD, str(made), getattr(stock, "_can_record_outputs", None))
    _register_checkpoint_keys(stock.__name__, name)
    register_head(stock.__name__, name)
    globals()[name] = made  # pickle looks it up here
    return made


def _check_loadable(model: PreTrainedModel, left: int, whole: int) -> None:
    """Raise ValueError for a model with removed layers whose config asks for other ones."""
    try:
        with torch.device("meta"):
            made = type(model)(copy.deepcopy(model.config))
        fits = len(signed_layers(made)) == left
    except ValueError:  # a list of masses does not fit
        fits = False
    if not fits:
        raise ValueError(
            f"this {type(model).__name__} has {left} of its {whole} layers, and its config asks for others; set "
            "num_hidden_layers to the number of those left, or save the whole model."
        )


def _stock_config(model: PreTrainedModel, config: PretrainedConfig, stock: type[PretrainedConfig]) -> PretrainedConfig:
    """A checked config with the same fields and the stock class, for a stock constructor."""
    if not hasattr(config, "attn_activation"):
        raise ValueError(
            f"expected a {model.config_class.__name__}, which has the attention fields; got {type(config).__name__}. "
            "Sign a stock model with hf_bidir.signed(model), or load a stock checkpoint with from_pretrained(name)."
        )
    check_bidir_config(config)
    model._check_backend(attn_implementation(config), is_softmax(config))
    return config_of_class(stock, vars(config))


def _register_checkpoint_keys(stock: str, signed: str) -> None:
    """Give a signed class the checkpoint keys of its stock one, by which transformers renames weights: without this,
    they would stay random."""
    mapping = checkpoint_names(stock)
    if mapping is not None:
        register_checkpoint_names(signed, mapping, overwrite=True)


def __getattr__(name: str) -> type[PreTrainedModel]:
    if not name.startswith(PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return signed_class(stock_class(name, PreTrainedModel))
