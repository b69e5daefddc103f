"""BERT with signed attention: the stock transformers heads, each with its self-attention retyped."""

from typing import TYPE_CHECKING

from transformers.models.bert.modeling_bert import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BertSelfAttention,
)

# transformers 4.57 fetches only the files that this one imports itself, so every file of the model stands here.
from .activations import tanhmax  # noqa: F401
from .attention import bidir_attention  # noqa: F401
from .attention_inputs import keep_mask  # noqa: F401
from .chunked_attention import chunked_tanhmax_attention  # noqa: F401
from .configuration_bidir import check_bidir_config  # noqa: F401
from .configuration_bidir_bert import BidirBertConfig
from .modeling_bidir import BidirMixin, signed_self_attention

if TYPE_CHECKING:  # attention.py imports these when it needs them, since they need Triton; they travel all the same
    from .fused_attention import fused_attention  # noqa: F401
    from .fused_blocks import hyperbolic  # noqa: F401
    from .fused_kernels import forward_kernel  # noqa: F401


class BidirBertSelfAttention(BertSelfAttention):
    """Self-attention with the activation and the negative mass that the config names."""

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        head_mask=None,
        encoder_hidden_states=None,
        past_key_values=None,
        *args,
        **kwargs,
    ):
        """`[batch, length, hidden]` -> context `[batch, length, hidden]`, coefficients or None."""
        for name, argument in (
            ("head_mask", head_mask),
            ("encoder_hidden_states", encoder_hidden_states),
            ("past_key_values", past_key_values),
        ):
            if argument is not None:
                raise ValueError(
                    f"signed BERT is an encoder with all its heads: {name} is not supported, leave it out."
                )
        return signed_self_attention(
            self,
            self.query(hidden_states),
            self.key(hidden_states),
            self.value(hidden_states),
            attention_mask,
            scaling=self.attention_head_size**-0.5,
            dropout=self.dropout.p,
        )


class BidirBertMixin(BidirMixin):
    config_class = BidirBertConfig
    stock_attention = BertSelfAttention
    signed_attention = BidirBertSelfAttention


class BidirBertModel(BidirBertMixin, BertModel):
    """`BertModel` with signed attention."""


class BidirBertForSequenceClassification(BidirBertMixin, BertForSequenceClassification):
    """`BertForSequenceClassification` with signed attention."""


class BidirBertForMaskedLM(BidirBertMixin, BertForMaskedLM):
    """`BertForMaskedLM` with signed attention."""


class BidirBertForTokenClassification(BidirBertMixin, BertForTokenClassification):
    """`BertForTokenClassification` with signed attention."""


class BidirBertForQuestionAnswering(BidirBertMixin, BertForQuestionAnswering):
    """`BertForQuestionAnswering` with signed attention."""


class BidirBertForMultipleChoice(BidirBertMixin, BertForMultipleChoice):
    """`BertForMultipleChoice` with signed attention."""


BidirBertModel.register_for_auto_class("AutoModel")
BidirBertForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
BidirBertForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
BidirBertForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
BidirBertForQuestionAnswering.register_for_auto_class("AutoModelForQuestionAnswering")
BidirBertForMultipleChoice.register_for_auto_class("AutoModelForMultipleChoice")
