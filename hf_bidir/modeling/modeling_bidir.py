"""Models with signed attention: `Bidir` + the name of any transformers model class, created on first access."""

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel

from .attention_call import fused_obstacle
from .compat import CAN_RECORD, attn_implementation, checkpoint_names, register_checkpoint_names, register_head
from .configuration_bidir import (
    PREFIX,
    all_masses,
    bidir_config,
    check_bidir_config,
    config_of_class,
    is_softmax,
    signed_config_class,
    stock_class,
    stock_heads,
)
from .interventions import recompute_alike
from .signed_layers import PAGED, check_attn_implementation, layer_names, sign_layers, signed_layers, unsign_layers

if TYPE_CHECKING:  # transformers 5.0 copies only the files that this one imports directly, so it imports all
    from .activations import tanhmax  # noqa: F401
    from .attention import bidir_attention  # noqa: F401
    from .attention_call import AttentionCall  # noqa: F401
    from .attention_layers import attention_layers  # noqa: F401
    from .chunked_attention import chunked_attention  # noqa: F401
    from .eager_attention import eager_attention  # noqa: F401
    from .fused_attention import fused_attention  # noqa: F401
    from .fused_blocks import triton  # noqa: F401
    from .fused_check import fused_agrees  # noqa: F401
    from .fused_kernels import forward_kernel  # noqa: F401
    from .fused_launch import launch  # noqa: F401
    from .fused_problem import Problem  # noqa: F401
    from .fused_tilings import TILINGS  # noqa: F401
    from .model_types import is_signed  # noqa: F401
    from .outside_attention import outside_class  # noqa: F401
    from .own_attention import own_attention  # noqa: F401
    from .signed_attention import signed_attention  # noqa: F401
    from .two_calls import kernel_attention  # noqa: F401


_Stock: Any = object  # type checkers accept what a mixin inherits from the class beside it


class BidirMixin(_Stock):
    """Base class of every signed model; precedes the stock class in the bases of a signed class.

    Weights, initialisation and state-dict keys are the stock ones. A softmax checkpoint therefore loads completely, and
    with `attn_activation="softmax"` or `attn_negative_mass=0` the model equals the stock model.
    """

    attends_between_tokens = True  # False: a single query attends to the whole input

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
        if isinstance(config.attn_negative_mass, list) and layers:
            # of the layers that are left; with their names, because a later transformers may list them in another order
            masses = [config.attn_negative_mass[layer.signed_index] for layer in layers]
            self.config = copy.copy(config)
            vars(self.config).update(attn_negative_mass=masses, attn_layers=layer_names(self, layers))
        try:
            if len(layers) != (whole := getattr(layers[0], "signed_count", 0) if layers else 0):
                _check_loadable(self, len(layers), whole)
            with _named_like_its_base(type(self)):
                return super().save_pretrained(*args, **kwargs)
        finally:
            self.config = config

    def _set_gradient_checkpointing(self, *args: Any, **kwargs: Any) -> None:
        super()._set_gradient_checkpointing(*args, **kwargs)
        recompute_alike(self)

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
        check_attn_implementation(attn_implementation, cls.attends_between_tokens, softmax)
        if attn_implementation == "fused" and (obstacle := fused_obstacle()):
            raise ValueError(f'attn_implementation="fused" cannot run here: {obstacle}; use "sdpa".')


@contextmanager
def _named_like_its_base(made: type) -> Iterator[None]:
    """The class that FSDP derives from a model's own belongs to a file of torch, which would be saved as its code."""
    own = next(base for base in made.__mro__ if not base.__module__.startswith("torch."))
    names = (
        {name: getattr(made, name) for name in ("__module__", "__name__", "__qualname__")} if own is not made else {}
    )
    try:
        for name in names:
            setattr(made, name, getattr(own, name))
        yield
    finally:
        for name, value in names.items():
            setattr(made, name, value)


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


def unsign(model: PreTrainedModel, config: PretrainedConfig) -> None:
    """Undo `sign`: a stock model again, with this stock config."""
    unsign_layers(model, config)
    replace_config(model, model.config, config)
    for part in model.modules():
        vars(part).pop("save_pretrained", None)
        if isinstance(part, BidirMixin):
            part.__class__ = stock_base(type(part))


def _refuse_to_save_part(*args: Any, **kwargs: Any) -> None:
    raise ValueError(
        "this part of a signed model cannot be saved by itself: transformers has no class for it, or its config has no "
        "fields of signed attention, so it would be loaded as softmax. Save the whole model; a part that has a Bidir… "
        "class can be loaded from there."
    )


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
