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

from transformers import AutoTokenizer, DataCollatorWithPadding, PreTrainedTokenizerBase, set_seed

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.finetune.arguments import RunArguments, ScheduleArguments, TextDataArguments, TextModelArguments
from hf_bidir.finetune.errors import as_input_error, run_script
from hf_bidir.finetune.models import (
    Family,
    build_model,
    check_given,
    checkpoint_config,
    scratch_config,
    starts_as_softmax,
)
from hf_bidir.finetune.recipe import parse_recipe
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.schedule_options import check_schedule
from hf_bidir.finetune.splits import Splits
from hf_bidir.finetune.text_data import check_max_length, read_texts, tokenize
from hf_bidir.finetune.tokenizer import train_wordpiece

OPTIONS = (TextDataArguments, TextModelArguments, ScheduleArguments, RunArguments)
BERT = Family(BidirBertForSequenceClassification, BidirBertConfig, stock_type="bert")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    data, arguments, schedule, args, given = parse_recipe(OPTIONS, argv, __doc__)
    check_given(arguments, given)
    check_schedule(schedule, arguments, given)
    splits = read_texts(data)
    if arguments.model_name_or_path:
        config = checkpoint_config(BERT, arguments, splits.names)
        with as_input_error(f"cannot load the tokenizer of {arguments.model_name_or_path}: ", OSError, ValueError):
            tokenizer = AutoTokenizer.from_pretrained(arguments.model_name_or_path)
    else:
        tokenizer, config = from_scratch(data, arguments, splits)
    check_max_length(data.max_length, config, arguments.model_name_or_path)
    set_seed(args.seed)
    return finetune(
        build_model(BERT, arguments, config),
        tokenize(splits, tokenizer, data.max_length),
        task="text-classification",
        args=args,
        data=data,
        given=given,
        processing_class=tokenizer,
        collator=DataCollatorWithPadding(tokenizer),
        schedule=schedule,
        centre=arguments.centre and starts_as_softmax(arguments.model_name_or_path),
    )


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
