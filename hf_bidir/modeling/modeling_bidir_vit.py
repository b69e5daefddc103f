"""ViT with signed attention: the stock transformers heads, each with its self-attention retyped."""

from transformers.models.vit.modeling_vit import ViTForImageClassification, ViTModel

# transformers 4.57 fetches only the files that this one imports itself, so every file of the model stands here.
from .activations import tanhmax  # noqa: F401
from .attention import bidir_attention  # noqa: F401
from .chunked_attention import chunked_tanhmax_attention  # noqa: F401
from .configuration_bidir import check_bidir_config  # noqa: F401
from .configuration_bidir_vit import BidirViTConfig
from .modeling_bidir import BidirMixin, signed_self_attention

try:  # transformers up to 5.16: projections in ViTSelfAttention, the output projection outside it
    from transformers.models.vit.modeling_vit import ViTSelfAttention
except ImportError:  # later: all four projections in ViTAttention
    from transformers.models.vit.modeling_vit import ViTAttention as ViTSelfAttention


class BidirViTSelfAttention(ViTSelfAttention):
    """Self-attention with the activation and the negative mass that the config names."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        """`[batch, length, hidden]` -> context (projected where the stock layer does) and coefficients or None."""
        merged = hasattr(self, "o_proj")
        if not merged and attention_mask is not None:
            raise ValueError("signed ViT keeps all its heads: head_mask is not supported, leave it out.")
        names = ("q_proj", "k_proj", "v_proj") if merged else ("query", "key", "value")
        query, key, value = (getattr(self, name)(hidden_states) for name in names)
        context, coefficients = signed_self_attention(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.scaling,
            dropout=self.config.attention_probs_dropout_prob,
        )
        return (self.o_proj(context) if merged else context), coefficients


class BidirViTMixin(BidirMixin):
    config_class = BidirViTConfig
    stock_attention = ViTSelfAttention
    signed_attention = BidirViTSelfAttention


class BidirViTModel(BidirViTMixin, ViTModel):
    """`ViTModel` with signed attention."""


class BidirViTForImageClassification(BidirViTMixin, ViTForImageClassification):
    """`ViTForImageClassification` with signed attention."""


def _rename_checkpoint_keys_like_the_stock_model() -> None:
    """Let BidirViTModel read the key names that ViTModel reads.

    transformers since 5.17 renames checkpoint keys by exact class name. Without this, a bidir encoder would keep its
    random weights and only a load report would say so.
    """
    try:
        from transformers.conversion_mapping import (
            get_checkpoint_conversion_mapping,
            register_checkpoint_conversion_mapping,
        )

        mapping = get_checkpoint_conversion_mapping("ViTModel")
    except ImportError:
        return
    if mapping is not None:
        register_checkpoint_conversion_mapping("BidirViTModel", mapping, overwrite=True)


_rename_checkpoint_keys_like_the_stock_model()
BidirViTModel.register_for_auto_class("AutoModel")
BidirViTForImageClassification.register_for_auto_class("AutoModelForImageClassification")
