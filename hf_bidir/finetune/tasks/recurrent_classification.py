"""Text classification with a recurrent model, or with attention over word embeddings alone."""

from functools import partial

from transformers import PreTrainedTokenizerBase

from hf_bidir.common.errors import as_input_error
from hf_bidir.finetune.arguments import RnnModelArguments, RunArguments, ScheduleArguments
from hf_bidir.finetune.data.arguments import TextDataArguments
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.data.tokenizer import train_words
from hf_bidir.finetune.models import attention_fields, label_fields
from hf_bidir.finetune.task import Task
from hf_bidir.finetune.tasks.text_classification import classify_texts
from hf_bidir.modeling.configuration_bidir_rnn import BidirRnnConfig

SHAPE = (
    "encoder",
    "bidirectional",
    "num_rnn_layers",
    "embedding_size",
    "hidden_size",
    "attn_score",
    "attn_query",
    "attn_scale",
    "attn_scope",
    "attn_window",
    "attn_selection",
    "dropout",
    "embedding_dropout",
)


def _new_rnn(
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


recurrent_classification = Task(
    (TextDataArguments, RnnModelArguments, ScheduleArguments, RunArguments), partial(classify_texts, _new_rnn)
)
