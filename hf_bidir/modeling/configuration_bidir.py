"""The config fields that every bidir model has, and what they may hold."""

from .activations import check_negative_mass, get_attn_activation

ENCODER_SCOPES, DECODER_SCOPES = ("global", "window"), ("local-m", "local-p")
ATTN_IMPLEMENTATIONS = {
    "sdpa": "the fastest exact path for the device, the default",
    "eager": "returns the coefficients",
    "fused": "insists on the Triton kernel, on a GPU",
}


def check_bidir_config(config) -> None:
    """Raise ValueError where a config asks for what a bidir model cannot do.

    Args:
        config: has `attn_activation` (a known name) and `attn_negative_mass` (`λ` in [0, 1]: one number, or a list
            with one entry per layer, each a number or a list with one number per head), and
            `attn_learn_negative_mass` (then every `λ` starts strictly between 0 and 1).
    """
    get_attn_activation(config.attn_activation)
    _check_negative_mass_field(config.attn_negative_mass, config.num_hidden_layers, config.num_attention_heads)
    if config.attn_learn_negative_mass:
        _check_learnable(config)
    _check_scope(config)
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise ValueError(
            f"{type(config).__name__} describes an encoder; got is_decoder={getattr(config, 'is_decoder', False)}, "
            f"add_cross_attention={getattr(config, 'add_cross_attention', False)}. Leave both False."
        )
    position_type = getattr(config, "position_embedding_type", "absolute") or "absolute"
    if position_type != "absolute":
        raise ValueError(f'position_embedding_type must be "absolute", got "{position_type}".')


def check_attn_implementation(name: str | None, between_tokens: bool = True) -> None:
    """Raise ValueError unless `name` is a backend that computes signed coefficients (None: not chosen yet).

    A model whose tokens do not attend to one another makes scores of its own, for which there is no kernel.
    """
    known = {key: told for key, told in ATTN_IMPLEMENTATIONS.items() if between_tokens or key != "fused"}
    if name not in (None, *known):
        choices = ", ".join(f'"{key}" ({told})' for key, told in known.items())
        raise ValueError(f'attn_implementation="{name}" cannot compute signed attention; choose {choices}.')


def layer_negative_mass(config, layer: int) -> float | list[float]:
    """`λ` of one layer: one number, or one per head."""
    mass = config.attn_negative_mass
    return mass if isinstance(mass, (int, float)) else mass[layer]  # torch 2.8 compiles no union here


def head_negative_masses(config, layer: int) -> list[float]:
    """`λ` of every head of one layer."""
    mass = layer_negative_mass(config, layer)
    return list(mass) if isinstance(mass, list | tuple) else [mass] * config.num_attention_heads


def _check_scope(config) -> None:
    scope, window, name = config.attn_scope, getattr(config, "attn_window", None), type(config).__name__
    if scope in DECODER_SCOPES and getattr(config, "decoder_style", None):
        if not window or window < 1:
            raise ValueError(f'attn_scope="{scope}" needs an attn_window of at least 1; got attn_window={window}.')
        return
    if scope in DECODER_SCOPES:
        raise ValueError(
            f'attn_scope="{scope}" is a place that moves with a decoder, and {name} (model_type="{config.model_type}") '
            f"has none; choose one of: {', '.join(ENCODER_SCOPES)}."
        )
    if scope not in ENCODER_SCOPES:
        raise ValueError(f'attn_scope="{scope}" is not known; choose one of: {", ".join(ENCODER_SCOPES)}.')
    if (scope == "window") != (window is not None) or (window is not None and window < 1):
        raise ValueError(
            f'expected attn_window of at least 1 with attn_scope="window", and none with "global"; got '
            f'attn_scope="{scope}" and attn_window={window}.'
        )


def _check_learnable(config) -> None:
    masses = [mass for layer in range(config.num_hidden_layers) for mass in head_negative_masses(config, layer)]
    if config.attn_activation != "tanhmax" or not all(0 < mass < 1 for mass in masses):
        raise ValueError(
            'attn_learn_negative_mass needs attn_activation="tanhmax" and an attn_negative_mass strictly between 0 and '
            f'1 to start from, such as 0.02; got "{config.attn_activation}" and {config.attn_negative_mass!r}.'
        )


def _check_negative_mass_field(mass, layers: int, heads: int) -> None:
    expected = f"a number in [0, 1], or a list of {layers} (one per layer), each a number or a list of {heads} (heads)"
    if isinstance(mass, int | float):
        check_negative_mass(mass)
        return
    if not isinstance(mass, list | tuple) or len(mass) != layers:
        raise ValueError(f"attn_negative_mass must be {expected}; got {mass!r}.")
    for per_layer in mass:
        values = per_layer if isinstance(per_layer, list | tuple) else [per_layer] * heads
        if len(values) != heads or not all(isinstance(v, int | float) for v in values):
            raise ValueError(f"attn_negative_mass must be {expected}; got the layer {per_layer!r}.")
        for value in values:
            check_negative_mass(value)
