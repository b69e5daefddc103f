"""Fine-tune a bidir BERT to classify texts, from scratch or from a checkpoint.

examples:
  # SST-2 from the Hub, small BERT from scratch, TanhMax attention
  python training/text_classification.py training/recipes/sst2-tanhmax.yaml

  # the same recipe on local files (parquet, csv, tsv, json, jsonl), one setting changed
  python training/text_classification.py training/recipes/sst2-tanhmax.yaml \\
      --train_file train.parquet --validation_file validation.parquet --test_file test.parquet --seed 1

  # your own reviews, starting from a stock softmax BERT
  python training/text_classification.py --train_file reviews.csv --text_column review --label_column stars \\
      --model_name_or_path google-bert/bert-base-uncased --learning_rate 3e-5 --num_train_epochs 3 \\
      --output_dir runs/reviews

  # two processes on one machine
  torchrun --nproc_per_node 2 training/text_classification.py training/recipes/sst2-tanhmax.yaml

A recipe is a YAML file of the options below; options on the command line win over it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).
"""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.finetune.arguments import TextDataArguments, TextModelArguments
from hf_bidir.finetune.errors import run_script
from hf_bidir.finetune.models import Family, scratch_config
from hf_bidir.finetune.splits import Splits
from hf_bidir.finetune.text_run import finetune_texts, text_options
from hf_bidir.finetune.tokenizer import train_wordpiece

OPTIONS = text_options(TextModelArguments)
BERT = Family(BidirBertForSequenceClassification, BidirBertConfig, stock_type="bert")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    return finetune_texts(argv, OPTIONS, __doc__, BERT, from_scratch)


def from_scratch(
    data: TextDataArguments, arguments: TextModelArguments, splits: Splits
) -> tuple[PreTrainedTokenizerBase, BidirBertConfig]:
    """A tokenizer trained on the training split, and the config of a new model for it."""
    configure = {"pad_token_id": 0, "max_position_embeddings": data.max_length}
    scratch_config(BERT, arguments, splits.names, **configure)  # refuses bad options before the vocabulary is made
    tokenizer = train_wordpiece(
        splits.train["text"],
        vocab_size=arguments.vocab_size,
        max_length=data.max_length,
        lowercase=arguments.lowercase,
    )
    return tokenizer, scratch_config(BERT, arguments, splits.names, vocab_size=len(tokenizer), **configure)


if __name__ == "__main__":
    run_script(main)
