"""Train a small recurrent model, or attention over word embeddings alone, to classify texts.

examples:
  # SST-2 from the Hub, the model of the TanhMax paper: embeddings, attention over time, a linear classifier
  python training/recurrent_classification.py training/recipes/sst2-rnn-tanhmax.yaml

  # your own texts, with a bidirectional LSTM and the additive layer of many tutorials
  python training/recurrent_classification.py --train_file train.csv --test_file test.csv --encoder lstm \\
      --bidirectional --attn_score feed_forward --output_dir runs/mine

A recipe is a YAML file of the options below; options on the command line win over it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).
"""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_bidir import BidirRnnConfig, BidirRnnForSequenceClassification
from hf_bidir.finetune.arguments import RnnModelArguments, TextDataArguments
from hf_bidir.finetune.errors import as_input_error, run_script
from hf_bidir.finetune.models import Family, attention_fields, label_fields
from hf_bidir.finetune.splits import Splits
from hf_bidir.finetune.text_run import finetune_texts, text_options
from hf_bidir.finetune.tokenizer import train_words

OPTIONS = text_options(RnnModelArguments)
RNN = Family(BidirRnnForSequenceClassification, BidirRnnConfig, stock_type=None)
SHAPE = (
    *("encoder", "bidirectional", "num_rnn_layers", "embedding_size", "hidden_size"),
    *("attn_score", "attn_scale", "dropout", "embedding_dropout"),
)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    return finetune_texts(argv, OPTIONS, __doc__, RNN, from_scratch)


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
            **attention_fields(arguments, {}),
        )
    return tokenizer, config


if __name__ == "__main__":
    run_script(main)
