"""Options of the scripts that train a new recurrent model, and the config that they describe."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from hf_bidir.common.errors import as_input_error
from hf_bidir.finetune.arguments import PretrainedArguments, option
from hf_bidir.finetune.models import attention_fields, label_fields
from hf_bidir.recurrent.configuration_bidir_rnn import ATTN_SELECTIONS, FIELDS, BidirRnnConfig


@dataclass
class RecurrentArguments(PretrainedArguments):
    """The initial checkpoint, or the shape of a new recurrent model."""

    encoder: str = option("gru", "From scratch: the recurrent layers, lstm or gru.")
    bidirectional: bool = option(False, "From scratch: a bidirectional encoder.")
    num_rnn_layers: int = option(1, "From scratch: the layers of the encoder.")
    embedding_size: int = option(200, "From scratch: the width of the embedding.")
    hidden_size: int = option(100, "From scratch: the width of encoder (per direction), queries, keys and values.")
    attn_selection: str = option(
        "soft",
        "From scratch: the selection, soft (all values) or hard (one drawn value).",
        choices=list(ATTN_SELECTIONS),
    )
    dropout: float = option(0.5, "From scratch: dropout before the final linear layer.")
    embedding_dropout: float = option(0.0, "From scratch: dropout of the embeddings.")
    vocab_size: int = option(8000, "From scratch: the maximum size of the vocabulary.")
    lowercase: bool = option(True, "From scratch: the tokenizer ignores case and accents; --no_lowercase keeps them.")


def recurrent_config(
    arguments: RecurrentArguments, tokenizer: PreTrainedTokenizerBase, positions: int, names: Sequence[str] = ()
) -> BidirRnnConfig:
    """The config of a new recurrent model; one without class names is an encoder-decoder, whose tokenizer ends texts.

    Raises:
        InputError: the config refuses a value, such as an unknown encoder.
    """
    fields = {name: value for name, value in vars(arguments).items() if name in FIELDS}
    fields |= attention_fields(arguments)
    fields |= label_fields(names)
    fields["vocab_size"] = len(tokenizer)
    fields["max_position_embeddings"] = positions
    fields["pad_token_id"] = tokenizer.pad_token_id
    fields["bos_token_id"] = fields["decoder_start_token_id"] = tokenizer.bos_token_id
    fields["eos_token_id"] = tokenizer.eos_token_id
    with as_input_error():
        return BidirRnnConfig(**fields)
