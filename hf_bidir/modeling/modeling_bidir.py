"""What the bidir models share: the stock model is built as it is, then its self-attention layers are retyped."""

from torch import Tensor, nn

from .attention import bidir_attention, keep_mask
from .configuration_bidir import check_attn_implementation, check_bidir_config, layer_negative_mass


class BidirMixin:
    """Turns a stock `PreTrainedModel` into its signed counterpart; stands before the stock class in a head's bases.

    Weights, initialisation and state-dict keys remain the stock ones, so a softmax checkpoint loads with nothing
    missing and `attn_activation="softmax"` equals the stock model.
    """

    stock_attention: type[nn.Module]
    signed_attention: type[nn.Module]
    _supports_flash_attn = False
    _supports_flex_attn = False

    def __init__(self, config, *args, **kwargs):
        check_bidir_config(config)
        check_attn_implementation(getattr(config, "_attn_implementation", None))
        super().__init__(config, *args, **kwargs)
        layers = [module for module in self.modules() if isinstance(module, self.stock_attention)]
        for index, module in enumerate(layers):
            module.__class__ = self.signed_attention
            module.config, module.layer_idx = self.config, index
        self.base_model.register_forward_pre_hook(_check_output_attentions, with_kwargs=True)


def _check_output_attentions(model, args, kwargs) -> None:
    """Refuse what the fast paths would answer with None or an empty tuple."""
    requested = kwargs.get("output_attentions")
    requested = model.config.output_attentions if requested is None else requested
    if requested and model.config._attn_implementation != "eager":
        raise ValueError(
            f'output_attentions=True needs attn_implementation="eager", which materialises the coefficients; it is '
            f'"{model.config._attn_implementation}". Call model.set_attn_implementation("eager"), or load the model '
            'with attn_implementation="eager".'
        )


def signed_self_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float,
) -> tuple[Tensor, Tensor | None]:
    """The attention of a retyped layer, by its config: context `[batch, queries, heads * head_dim]`, coefficients.

    Query, key and value are `[batch, length, heads * head_dim]` projections; `attention_mask` is whatever
    transformers made for the backend.
    """
    config = module.config
    check_attn_implementation(config._attn_implementation)
    heads = [x.unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2) for x in (query, key, value)]
    context, coefficients = bidir_attention(
        *heads,
        keep_mask(attention_mask),
        activation=config.attn_activation,
        negative_mass=layer_negative_mass(config, module.layer_idx),
        scaling=scaling,
        dropout=dropout if module.training else 0.0,
        implementation="eager" if config._attn_implementation == "eager" else "auto",
    )
    return context.transpose(1, 2).flatten(2), coefficients
