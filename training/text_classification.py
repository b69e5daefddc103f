"""Fine-tune a model with signed attention to classify texts: any checkpoint of transformers, or a new BERT.

examples:
  # your own texts: csv, tsv, json or parquet with a text and a label column
  python training/text_classification.py --train_file train.csv --test_file test.csv --learning_rate 1e-3 \\
      --num_train_epochs 30 --early_stopping_patience 5 --output_dir runs/mine

  # SST-2 from the Hub, small BERT from scratch, TanhMax attention
  python training/text_classification.py training/recipes/sst2-tanhmax.yaml

  # the same recipe on local files (parquet, csv, tsv, json, jsonl), one setting changed
  python training/text_classification.py training/recipes/sst2-tanhmax.yaml \\
      --train_file train.parquet --validation_file validation.parquet --test_file test.parquet --seed 1

  # your own reviews, starting from a stock softmax checkpoint
  python training/text_classification.py --train_file reviews.csv --text_column review --label_column stars \\
      --model_name_or_path FacebookAI/roberta-base --learning_rate 3e-5 --num_train_epochs 3 \\
      --output_dir runs/reviews

  # two processes on one machine
  torchrun --nproc_per_node 2 training/text_classification.py training/recipes/sst2-tanhmax.yaml

A recipe is a YAML file of the options below; options on the command line override it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForSequenceClassification and AutoTokenizer, with trust_remote_code=True in both.
"""

import hf_bidir.cli.start  # isort: skip  # noqa: F401  (first: before torch and transformers)

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import DataCollatorWithPadding, set_seed

from hf_bidir import BidirBertConfig
from hf_bidir.cli.script import Options, parse, run_script
from hf_bidir.finetune.arguments import (
    ModelArguments,
    RunArguments,
    ScheduleArguments,
    TextDataArguments,
    option,
)
from hf_bidir.finetune.data.text_data import fit_max_length, read_texts, tokenize
from hf_bidir.finetune.data.tokenizer import train_wordpiece
from hf_bidir.finetune.metrics import classification_metrics, predicted_classes
from hf_bidir.finetune.models import (
    build_model,
    check_options,
    checkpoint_config,
    know_padding,
    saved_tokenizer,
    scratch_config,
    starts_as_softmax,
)
from hf_bidir.finetune.run import Run
from hf_bidir.finetune.trainer import SignedTrainer
from hf_bidir.hub.card import write_card

HEAD = "AutoModelForSequenceClassification"


@dataclass
class TextModelArguments(ModelArguments):
    """Model options of text classification."""

    vocab_size: int = option(8000, "From scratch: the size of the WordPiece vocabulary.")
    lowercase: bool = option(True, "From scratch: the tokenizer ignores case and accents; --no_lowercase keeps them.")


OPTIONS = (TextDataArguments, TextModelArguments, ScheduleArguments, RunArguments)


def main(options: Options = None, trainer_class: Callable[..., SignedTrainer] = SignedTrainer) -> dict[str, Any]:
    """Train as the options say, by default those of the command line; return the numbers of all_results.json."""
    data, shape, schedule, args = parse(OPTIONS, options, __doc__)
    check_options(shape, args.typed)
    source = shape.model_name_or_path

    splits = read_texts(data)
    if source:
        config = checkpoint_config(HEAD, shape, splits.names)
        tokenizer = saved_tokenizer(source, config)
        know_padding(config, tokenizer)
    else:
        tokenizer = train_wordpiece(
            splits.train["text"][:], vocab_size=shape.vocab_size, max_length=data.max_length, lowercase=shape.lowercase
        )
        sizes = {"max_position_embeddings": data.max_length, "vocab_size": len(tokenizer)}
        config = scratch_config(BidirBertConfig, shape, splits.names, pad_token_id=0, **sizes)
    if data.truncation_side:
        tokenizer.truncation_side = data.truncation_side  # saved with the tokenizer
    set_seed(args.seed)
    model = build_model(HEAD, shape, config)
    fit_max_length(data, model)

    splits = tokenize(splits, tokenizer, data.max_length)
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=splits.train,
        eval_dataset=splits.validation,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=classification_metrics(splits.names),
        preprocess_logits_for_metrics=predicted_classes,
    )
    run = Run(trainer, "text-classification", data, splits, schedule)
    results = run.train_and_save(centre=starts_as_softmax(source))
    if args.should_save:
        print(f"Model card: {write_card(args.output_dir)}")
    return results


if __name__ == "__main__":
    run_script(main)
