"""Signs a stock model in place."""

from typing import Any

from transformers import PreTrainedModel

from hf_bidir.checkpoints.unwrapping import unwrapped
from hf_bidir.modeling.configuration_bidir import bidir_config
from hf_bidir.modeling.modeling_bidir import sign, signed_class
from hf_bidir.modeling.signed_layers import check_attn_implementation, signed_layers


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
        model: a transformers model whose attention layers use the attention interface; also compiled, or in
            `DataParallel`, `DistributedDataParallel` or peft's wrapper: the model inside is signed.
        negative_mass: `λ` in [0, 1]: one number, or a list with one entry per layer, each a number or one per head.
        attn_activation: "tanhmax", "balanced", "softmax", "tanh" or a registered name.
        partial: accept a model in which some attention is outside the interface and stays softmax.
        activation: the former name of `attn_activation`.

    Returns:
        The model. Its config is a new object; the stock config does not change.

    Raises:
        ValueError: not a transformers model, signed already, no layer uses the interface, or some attention is outside
            the interface.
    """
    given, model = model, unwrapped(model)
    if signed_layers(model):
        raise ValueError(
            f"{type(model).__name__} is signed already; set model.config.attn_negative_mass, the value of all layers."
        )
    made = signed_class(type(model))
    activation = activation or attn_activation
    config = bidir_config(
        model.config, attn_activation=activation, attn_negative_mass=negative_mass, attn_partial=partial
    )
    check_attn_implementation(config._attn_implementation)
    sign(model, config)
    model.__class__ = made
    return given
