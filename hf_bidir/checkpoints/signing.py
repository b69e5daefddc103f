"""Signs a stock model in place and back, also one that is compiled, distributed or wrapped by peft."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from hf_bidir.kernels.interventions import Interventions, intervening
from hf_bidir.modeling.compat import attn_implementation
from hf_bidir.modeling.configuration_bidir import ATTENTION_FIELDS, bidir_config, config_of_class, is_softmax
from hf_bidir.modeling.modeling_bidir import BidirMixin, replace_config, sign, signed_class
from hf_bidir.modeling.outside_attention import OutsideAttention
from hf_bidir.modeling.signed_layers import check_attn_implementation, signed_layers

SHARDED = {"FullyShardedDataParallel", "FSDPModule"}


def signed(
    model: PreTrainedModel,
    negative_mass: Any = 1.0,
    *,
    attn_activation: str = "tanhmax",
    partial: bool = False,
) -> PreTrainedModel:
    """Sign a stock model in place: the same object and weights, with the class `Bidir…`.

    Args:
        model: a transformers model with softmax attention; also compiled, or in
            `DataParallel`, `DistributedDataParallel` or peft's wrapper: the model inside is signed.
        negative_mass: `λ` in [0, 1]: one number, or a list with one entry per layer, each a number or one per head.
        attn_activation: "tanhmax", "balanced", "softmax", "tanh" or a registered name.
        partial: sign only layers that use transformers' attention interface; other attention stays softmax.

    Returns:
        The model. Its config is a new object; the stock config does not change.

    Raises:
        ValueError: not a transformers model, signed already, no softmax attention, or some that cannot be signed.
    """
    wrapped, model = model, unwrapped(model)
    if signed_layers(model):
        raise ValueError(f"{type(model).__name__} is signed already; set model.config.attn_negative_mass to change λ.")
    made = signed_class(type(model))
    fields = {"attn_activation": attn_activation, "attn_negative_mass": negative_mass, "attn_partial": partial}
    config = bidir_config(model.config, **fields)
    check_attn_implementation(config._attn_implementation, softmax=is_softmax(config))
    sign(model, config)
    model.__class__ = made
    config.architectures = [made.__name__]  # by which other libraries choose their code
    return wrapped


def unsigned(model: PreTrainedModel) -> PreTrainedModel:
    """The inverse of `signed`, for a signed model that computes softmax: the same object and weights as a stock model.

    Args:
        model: a signed model with `λ = 0` in every head, or with the activation "softmax"; wrapped as for `signed`.

    Returns:
        The model, of the class and with a config of transformers.

    Raises:
        ValueError: not signed, or no stock model gives the same outputs; the model does not change.
    """
    wrapped, model = model, unwrapped(model)
    name, config = type(model).__name__, model.config
    if not signed_layers(model):
        raise ValueError(f"{name} is not signed; there is nothing to undo.")
    if not isinstance(model, BidirMixin) or not is_softmax(config) or config.attn_window is not None:
        raise ValueError(
            f"no stock model gives the outputs of this {name}, which computes {config.attn_activation} with "
            f"attn_negative_mass={config.attn_negative_mass} and attn_window={config.attn_window}. Set "
            "model.config.attn_negative_mass = 0 if you want other outputs, or compare with softmax inside "
            "`with hf_bidir.softmax(model):`."
        )
    if attn_implementation(config) == "fused":
        model.set_attn_implementation("sdpa")
    stock = stock_config(config, stock_base(type(model)))
    _unsign_layers(model, stock)
    replace_config(model, config, stock)
    for part in model.modules():
        vars(part).pop("save_pretrained", None)
        if isinstance(part, BidirMixin):
            part.__class__ = stock_base(type(part))
    return wrapped


@contextmanager
def softmax(model: PreTrainedModel) -> Iterator[None]:
    """Inside the context, a signed model computes softmax attention with the same weights, in calls from this thread.

    Args:
        model: as for `unsigned`, with any activation and negative mass.

    Raises:
        ValueError: the model is not signed.
    """
    model = unwrapped(model)
    layers = signed_layers(model)
    if not layers:
        raise ValueError(f"{type(model).__name__} is not signed; it computes softmax as it is.")
    with intervening(model, layers, Interventions(softmax=True)):
        yield


@contextmanager
def as_signed(model: Any) -> Iterator[None]:
    """Inside the context, a stock model is signed with `λ = 0`, which computes the same; a signed one stays as it is.

    Afterwards the model has its stock class and the config object that it had. Errors as in `signed`.
    """
    model = unwrapped(model)
    if signed_layers(model):
        yield
        return
    config = model.config
    signed(model, 0.0)
    try:
        yield
    finally:
        unsigned(model)
        replace_config(model, model.config, config)


def stock_config(config: PretrainedConfig, stock_class: type[PreTrainedModel]) -> PretrainedConfig:
    """The inverse of `bidir_config`."""
    removed = (*ATTENTION_FIELDS, "auto_map", "architectures")
    fields = {name: value for name, value in vars(config).items() if name not in removed}
    return config_of_class(stock_class.config_class, copy.deepcopy(fields))


def unwrapped(model: Any) -> PreTrainedModel:
    """The model inside `torch.compile`, `DataParallel`, `DistributedDataParallel` or peft, with its adapter in place.

    Raises:
        ValueError: no transformers model, one with sharded weights, or an adapter outside the model, such as a prompt.
    """
    name = type(model).__name__
    if SHARDED & {base.__name__ for base in type(model).__mro__}:
        raise ValueError(f"the weights of this {name} are sharded; use the model as it was before, or its checkpoint.")
    if isinstance(model, PreTrainedModel):
        return model
    if hasattr(type(model), "get_base_model"):  # peft
        if model.active_peft_config.is_prompt_learning:
            raise ValueError(f"this {name} adds a prompt, which is outside the model; pass model.get_base_model().")
        return unwrapped(model.get_base_model())
    inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)  # of torch.compile, and of DataParallel
    if inner is not None:
        return unwrapped(inner)
    raise ValueError(f"expected a transformers model, got a {name}; load one with AutoModel.from_pretrained.")


def stock_base(made: type[BidirMixin]) -> Any:
    """The class that a signed class was made from."""
    return next(base for base in made.__mro__ if not issubclass(base, BidirMixin))


def _unsign_layers(model: PreTrainedModel, config: PretrainedConfig) -> None:
    """Undo `sign_layers`; layers that had the config of the model get this one."""
    for layer in signed_layers(model):
        view = layer.signed_view
        if isinstance(layer, OutsideAttention):
            layer.__class__ = layer.stock_class
        else:
            layer.config = config if view.stock is view.bidir else view.stock
        del layer.signed_index, layer.signed_view
    for part in model.modules():
        for hook in vars(part).pop("signed_hooks", ()):
            hook.remove()
