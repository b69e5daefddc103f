"""Configs of models with signed attention: `Bidir` + the name of any transformers config, created on first access."""

import functools
from typing import Any

import transformers
from transformers import PretrainedConfig

from .activations import WITH_NEGATIVE_MASS, as_masses, did_you_mean, get_attn_activation
from .compat import PREFIX, SIGNED, stock_heads

FORMAT = 1  # version of the fields below in config.json
ATTENTION_FIELDS = {
    "attn_activation": "tanhmax",
    "attn_negative_mass": 1.0,
    "attn_scope": "global",
    "attn_window": None,
    "attn_partial": False,
}
FIELDS_DOC = """
    Signed attention adds these fields:

    attn_activation: "tanhmax" (default), "balanced", "softmax", "tanh" or a name given to `register_attn_activation`.
    attn_negative_mass: `λ` of "tanhmax" and "balanced" in [0, 1] (0 is softmax): one number, or a list with one entry
        per signed layer in the order of `model.modules()`, each a number or a list with one number per head.
    attn_scope: "global" (default): a query attends to all keys that the model's mask keeps; "window": only to those at
        most `attn_window` positions away, on either side.
    attn_window: at least 1; only with `attn_scope="window"`.
    attn_partial: sign only layers that use transformers' attention interface; other attention stays softmax.
"""


_Stock: Any = object  # type checkers accept what a mixin inherits from the class beside it


class BidirConfigMixin(_Stock):
    """Base class of every config with signed attention; precedes the stock config in the bases of a signed class."""

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict, dict]:
        """As in transformers; also accepts stock checkpoints. The config of a part of a signed model inherits the
        attention fields of the whole."""
        fields, unused = super().get_config_dict(*args, **kwargs)
        if f"{SIGNED}{fields.get('model_type')}" == cls.model_type:
            fields["model_type"] = cls.model_type  # avoids a warning of transformers about another type
        whole = {name: fields[name] for name in ATTENTION_FIELDS if name in fields}
        keys = getattr(cls, "base_config_key", None) or []  # CLVP's encoder has several
        for key in [keys] if isinstance(keys, str) else keys:
            if isinstance(fields.get(key), dict):
                fields[key] |= whole
        return fields, unused

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field; `attn_negative_mass` is checked, and stored as floats and lists, which json can hold."""
        super().__setattr__(name, as_masses(value) if name == "attn_negative_mass" else value)

    def to_diff_dict(self) -> dict[str, Any]:
        """As in transformers, but always with the attention fields, so that saved configs do not depend on defaults."""
        ours = {name: getattr(self, name) for name in ATTENTION_FIELDS if hasattr(self, name)}
        return super().to_diff_dict() | ours | {"attn_format": FORMAT}

    def check_scope(self) -> None:
        """Raise ValueError unless `attn_scope` and `attn_window` fit each other and the model."""
        scope, window = self.attn_scope, self.attn_window
        if scope not in ("global", "window"):
            raise ValueError(f'attn_scope="{scope}" is not known; choose one of: global, window.')
        has_window = window is not None
        if has_window != (scope == "window") or (has_window and window < 1):
            raise ValueError(
                f'expected an attn_window of at least 1 with attn_scope="window", and none with "global"; got '
                f'attn_window={window} with "{scope}".'
            )
        if scope == "window" and getattr(self, "is_encoder_decoder", False):
            raise ValueError(f'attn_scope="window" needs self-attention only; {self.model_type} has cross-attention.')


def bidir_config(config: PretrainedConfig, **fields: Any) -> PretrainedConfig:
    """A shallow copy of a stock config as the config of the signed model; configs of its parts stay the same objects.

    Args:
        fields: attention fields that differ from the defaults.

    Raises:
        ValueError: a field is invalid.
    """
    config_class = signed_config_class(type(config))
    signed = config_of_class(config_class, vars(config) | {"model_type": config.model_type})
    for name, value in (ATTENTION_FIELDS | fields).items():
        setattr(signed, name, value)
    signed.auto_map = dict(config_class.remote_code)
    check_bidir_config(signed)
    return signed


def config_of_class(config_class: type[PretrainedConfig], fields: dict[str, Any]) -> PretrainedConfig:
    """A config of this class with exactly these fields; no constructor runs, which could add or convert some."""
    config = object.__new__(config_class)
    vars(config).update(fields)
    return config


def signed_config_class(stock: type[PretrainedConfig]) -> type[PretrainedConfig]:
    """The signed class of a config class of transformers."""
    return globals().get(PREFIX + stock.__name__) or _create_class(stock)


def _create_class(stock: type[PretrainedConfig]) -> type[PretrainedConfig]:
    name = PREFIX + stock.__name__

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if (saved := kwargs.pop("attn_format", 0)) > FORMAT:
            raise ValueError(
                f"this checkpoint was saved by a newer hf_bidir (attn_format {saved}; this version knows up to "
                f"{FORMAT}); upgrade with pip install -U hf-bidir."
            )
        fields = {field: kwargs.pop(field, default) for field, default in ATTENTION_FIELDS.items()}
        kwargs.pop("auto_map", None)
        model_type = kwargs.pop("model_type", stock.model_type)
        stock.__init__(self, *args, **kwargs)
        # Libraries decide by it what a model needs, as for the stock one: names of weights, tokenizers, inputs. It may
        # differ from that of the stock class. Files get the type of this class, by which a signed model is found again.
        self.model_type = model_type.removeprefix(SIGNED)
        for field, value in fields.items():
            setattr(self, field, value)
        self.auto_map = dict(type(self).remote_code)
        check_bidir_config(self)

    functools.update_wrapper(__init__, stock.__init__)
    made: Any = type(
        name,
        (BidirConfigMixin, stock),
        {
            "__init__": __init__,
            "__module__": __name__,
            "__qualname__": name,
            "__doc__": (stock.__doc__ or "") + FIELDS_DOC,
            "model_type": f"{SIGNED}{stock.model_type}",
            # every head, because save_pretrained would list only the saved one
            "remote_code": {"AutoConfig": f"configuration_bidir.{name}"}
            | {auto: f"modeling_bidir.{PREFIX}{head}" for auto, head in stock_heads(stock.model_type).items()},
        },
    )
    made.register_for_auto_class()
    globals()[name] = made  # pickle looks it up here
    return made


def stock_class(name: str, kind: type) -> type:
    """The class of transformers that `Bidir…` extends.

    Raises:
        AttributeError: transformers has no such class; the message names the closest.
    """
    stock_name = name.removeprefix(PREFIX)
    stock = getattr(transformers, stock_name, None)
    if not (isinstance(stock, type) and issubclass(stock, kind)):
        known = [f"{PREFIX}{other}" for other in dir(transformers) if other != stock_name]
        raise AttributeError(
            f"there is no {name}: transformers {transformers.__version__} has no {kind.__name__} class "
            f'"{stock_name}".{did_you_mean(name, known)}'
        )
    return stock


def __getattr__(name: str) -> type[PretrainedConfig]:
    if not name.startswith(PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return signed_config_class(stock_class(name, PretrainedConfig))


def check_bidir_config(config: PretrainedConfig) -> None:
    """Raise ValueError for invalid attention fields; `check_layers` compares them with a model's layers."""
    get_attn_activation(config.attn_activation)
    config.check_scope()


def check_layers(mass: Any, heads: list[int | None]) -> None:
    """Raise ValueError unless an `attn_negative_mass` fits layers with these numbers of heads (None: unknown)."""
    if isinstance(mass, int | float):
        return
    if len(mass) != len(heads):
        raise ValueError(
            f"attn_negative_mass must be a number in [0, 1], or a list of {len(heads)} (one per signed layer), each a "
            f"number or a list with one number per head; got {mass!r}."
        )
    for layer, (entry, count) in enumerate(zip(mass, heads, strict=True)):
        if isinstance(entry, list | tuple) and count not in (None, len(entry)):
            raise ValueError(f"attn_negative_mass of layer {layer} needs {count} numbers, one per head; got {entry!r}.")


def all_masses(mass: Any) -> list[float]:
    """All numbers of a possibly nested `attn_negative_mass`, as a flat list."""
    if not isinstance(mass, (list, tuple)):  # torch 2.8 compiles no union
        return [mass]
    return [value for entry in mass for value in all_masses(entry)]


def computes_softmax(activation: str, negative_mass: Any) -> bool:
    """Whether attention with this activation and negative mass, nested or one number, is softmax in every head."""
    return activation == "softmax" or (activation in WITH_NEGATIVE_MASS and not any(all_masses(negative_mass)))


def is_softmax(config: PretrainedConfig) -> bool:
    """Whether a bidir model with this config computes softmax attention in every head."""
    return computes_softmax(config.attn_activation, config.attn_negative_mass)
