"""Recurrent text classification, from the command line's options to the finished folder."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_bidir.finetune.arguments import RnnModelArguments, TextDataArguments
from hf_bidir.finetune.errors import as_input_error
from hf_bidir.finetune.models import attention_fields, label_fields
from hf_bidir.finetune.splits import Splits
from hf_bidir.finetune.text_run import finetune_texts, text_options
from hf_bidir.finetune.tokenizer import train_words
from hf_bidir.modeling.configuration_bidir_rnn import BidirRnnConfig

OPTIONS = text_options(RnnModelArguments)
SHAPE = (
    *("encoder", "bidirectional", "num_rnn_layers", "embedding_size", "hidden_size"),
    *("attn_score", "attn_query", "attn_scale", "attn_selection", "dropout", "embedding_dropout"),
)


def finetune_recurrent(argv: Sequence[str] | None, description: str = "") -> dict[str, Any]:
    """`finetune_texts` for recurrent models; arguments, result and errors as there."""
    return finetune_texts(argv, OPTIONS, description, from_scratch)


def from_scratch(
    data: TextDataArguments, arguments: RnnModelArguments, splits: Splits
) -> tuple[PreTrainedTokenizerBase, BidirRnnConfig]:
    """A tokenizer of the words of the training split, and the config of a new model for it."""
    tokenizer = train_words(
        splits.train["text"],
        vocab_size=arguments.vocab_size,
        max_length=data.max_length,
        lowercase=arguments.lowercase,
    )
    with as_input_error():
        config = BidirRnnConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=data.max_length,
            pad_token_id=tokenizer.pad_token_id,
            **{name: getattr(arguments, name) for name in SHAPE},
            **label_fields(splits.names),
            **attention_fields(arguments),
        )
    return tokenizer, config
