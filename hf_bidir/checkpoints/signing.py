"""Signs a stock model in place, also one that is compiled, distributed or wrapped by peft."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_bidir.modeling.configuration_bidir import bidir_config
from hf_bidir.modeling.modeling_bidir import sign, signed_class
from hf_bidir.modeling.signed_layers import check_attn_implementation, signed_layers

SHARDED = {"FullyShardedDataParallel", "FSDPModule"}


def signed(
    model: PreTrainedModel,
    negative_mass: Any = 1.0,
    *,
    attn_activation: str = "tanhmax",
    partial: bool = False,
    activation: str | None = None,
) -> PreTrainedModel:
    """Sign a stock model in place: the same object and weights, with the class `Bidir…`.

    Args:
        model: a transformers model with softmax attention; also compiled, or in
            `DataParallel`, `DistributedDataParallel` or peft's wrapper: the model inside is signed.
        negative_mass: `λ` in [0, 1]: one number, or a list with one entry per layer, each a number or one per head.
        attn_activation: "tanhmax", "balanced", "softmax", "tanh" or a registered name.
        partial: sign only layers that use transformers' attention interface; other attention stays softmax.
        activation: the former name of `attn_activation`.

    Returns:
        The model. Its config is a new object; the stock config does not change.

    Raises:
        ValueError: not a transformers model, signed already, no softmax attention, or some that cannot be signed.
    """
    given, model = model, unwrapped(model)
    if signed_layers(model):
        raise ValueError(f"{type(model).__name__} is signed already; set model.config.attn_negative_mass to change λ.")
    made, activation = signed_class(type(model)), activation or attn_activation
    config = bidir_config(
        model.config, attn_activation=activation, attn_negative_mass=negative_mass, attn_partial=partial
    )
    check_attn_implementation(config._attn_implementation)
    sign(model, config)
    model.__class__ = made  # which `save_pretrained` writes into the config
    return given


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
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    if isinstance(model, nn.Module) and "_orig_mod" in model._modules:  # torch.compile
        return unwrapped(model._orig_mod)
    raise ValueError(f"expected a transformers model, got a {name}; load one with AutoModel.from_pretrained.")
