"""A stock model made signed, in place."""

from typing import Any

from transformers import PreTrainedModel

from hf_bidir.modeling.configuration_bidir import bidir_config
from hf_bidir.modeling.modeling_bidir import made_class, replace_config
from hf_bidir.modeling.signed_layers import check_attn_implementation, sign_layers, signed_layers


def signed(
    model: PreTrainedModel, negative_mass: Any = 1.0, *, activation: str = "tanhmax", partial: bool = False
) -> PreTrainedModel:
    """Make a stock model signed, in place: the same object and weights, now of the class `Bidir…`.

    Args:
        model: a model of transformers whose attention layers go through its attention interface.
        negative_mass: `λ` in [0, 1]: one number, or a list with one entry per layer, each a number or one per head.
        activation: "tanhmax", "softmax", "tanh" or a registered name.
        partial: accept that some attention of the model is outside the interface and stays softmax.

    Returns:
        The model, to train, save or explain. Its config is a new object; the stock one is left as it was.

    Raises:
        ValueError: it is no model of transformers, is signed already, has no such layer, or has some attention outside
            the interface.
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"expected a model of transformers, got a {type(model).__name__}; AutoModel.from_pretrained(…) loads one."
        )
    if signed_layers(model):
        raise ValueError(
            f"{type(model).__name__} is signed already; set model.config.attn_negative_mass, which every layer reads."
        )
    before, made = model.config, made_class(type(model))
    config = bidir_config(before, attn_activation=activation, attn_negative_mass=negative_mass, attn_partial=partial)
    check_attn_implementation(config._attn_implementation)
    replace_config(model, before, config)
    try:
        sign_layers(model)
    except ValueError:
        replace_config(model, config, before)
        raise
    model.__class__ = made
    return model
