"""Text classification with any checkpoint, or a new BERT, from the command line's options to the finished folder."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from hf_bidir import BidirBertConfig
from hf_bidir.finetune.arguments import TextDataArguments, TextModelArguments
from hf_bidir.finetune.masking import JointCollator, JointTrainer
from hf_bidir.finetune.models import scratch_config
from hf_bidir.finetune.splits import Splits
from hf_bidir.finetune.text_run import finetune_texts, text_options
from hf_bidir.finetune.tokenizer import train_wordpiece

OPTIONS = text_options(TextModelArguments)


def finetune_transformer(argv: Sequence[str] | None, description: str = "") -> dict[str, Any]:
    """`finetune_texts` for any checkpoint, or a new BERT; arguments, result and errors as there."""
    return finetune_texts(argv, OPTIONS, description, from_scratch, guess_words)


def from_scratch(
    data: TextDataArguments, arguments: TextModelArguments, splits: Splits
) -> tuple[PreTrainedTokenizerBase, BidirBertConfig]:
    """A tokenizer trained on the training split, and the config of a new model for it."""
    configure = {"pad_token_id": 0, "max_position_embeddings": data.max_length}
    scratch_config(
        BidirBertConfig, arguments, splits.names, **configure
    )  # refuses bad options before the vocabulary is made
    tokenizer = train_wordpiece(
        splits.train["text"],
        vocab_size=arguments.vocab_size,
        max_length=data.max_length,
        lowercase=arguments.lowercase,
    )
    return tokenizer, scratch_config(BidirBertConfig, arguments, splits.names, vocab_size=len(tokenizer), **configure)


def guess_words(arguments: TextModelArguments, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Masked language modelling beside the classification, where it has a weight."""
    if not arguments.masked_lm_weight:
        return {}
    return {
        "collator": JointCollator(tokenizer),
        "eval_collator": DataCollatorWithPadding(tokenizer),
        "trainer_class": partial(JointTrainer, masked_lm_weight=arguments.masked_lm_weight),
    }
