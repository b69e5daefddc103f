"""Signed ("bidirectional") attention for the Hugging Face ecosystem."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from hf_bidir.convert import convert_checkpoint
from hf_bidir.modeling.activations import register_attn_activation, tanhmax
from hf_bidir.modeling.attention import bidir_attention, packed_attention
from hf_bidir.modeling.configuration_bidir_bert import BidirBertConfig
from hf_bidir.modeling.configuration_bidir_deit import BidirDeiTConfig
from hf_bidir.modeling.configuration_bidir_rnn import BidirRnnConfig
from hf_bidir.modeling.configuration_bidir_vit import BidirViTConfig
from hf_bidir.modeling.modeling_bidir_bert import (
    BidirBertForMaskedLM,
    BidirBertForMultipleChoice,
    BidirBertForQuestionAnswering,
    BidirBertForSequenceClassification,
    BidirBertForTokenClassification,
    BidirBertModel,
)
from hf_bidir.modeling.modeling_bidir_deit import BidirDeiTForImageClassification, BidirDeiTModel
from hf_bidir.modeling.modeling_bidir_rnn import BidirRnnForSequenceClassification, BidirRnnModel
from hf_bidir.modeling.modeling_bidir_seq2seq import BidirRnnForSeq2SeqLM
from hf_bidir.modeling.modeling_bidir_vit import BidirViTForImageClassification, BidirViTModel
from hf_bidir.schedules import NegativeMassSchedule

__all__ = [
    "BidirBertConfig",
    "BidirBertForMaskedLM",
    "BidirBertForMultipleChoice",
    "BidirBertForQuestionAnswering",
    "BidirBertForSequenceClassification",
    "BidirBertForTokenClassification",
    "BidirBertModel",
    "BidirDeiTConfig",
    "BidirDeiTForImageClassification",
    "BidirDeiTModel",
    "BidirRnnConfig",
    "BidirRnnForSeq2SeqLM",
    "BidirRnnForSequenceClassification",
    "BidirRnnModel",
    "BidirViTConfig",
    "BidirViTForImageClassification",
    "BidirViTModel",
    "NegativeMassSchedule",
    "bidir_attention",
    "convert_checkpoint",
    "packed_attention",
    "register_attn_activation",
    "tanhmax",
]
__version__ = "0.1.0"

# A registered class wins over a checkpoint's remote code, so every head is registered, never only some.
for _config, _heads in (
    (
        BidirBertConfig,
        {
            AutoModel: BidirBertModel,
            AutoModelForMaskedLM: BidirBertForMaskedLM,
            AutoModelForMultipleChoice: BidirBertForMultipleChoice,
            AutoModelForQuestionAnswering: BidirBertForQuestionAnswering,
            AutoModelForSequenceClassification: BidirBertForSequenceClassification,
            AutoModelForTokenClassification: BidirBertForTokenClassification,
        },
    ),
    (
        BidirDeiTConfig,
        {AutoModel: BidirDeiTModel, AutoModelForImageClassification: BidirDeiTForImageClassification},
    ),
    (
        BidirRnnConfig,
        {
            AutoModel: BidirRnnModel,
            AutoModelForSeq2SeqLM: BidirRnnForSeq2SeqLM,
            AutoModelForSequenceClassification: BidirRnnForSequenceClassification,
        },
    ),
    (
        BidirViTConfig,
        {AutoModel: BidirViTModel, AutoModelForImageClassification: BidirViTForImageClassification},
    ),
):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    for _auto, _head in _heads.items():
        _auto.register(_config, _head, exist_ok=True)
