"""Train a small recurrent model, or attention over word embeddings alone, to classify texts.

examples:
  # SST-2 from the Hub, the model of the TanhMax paper: embeddings, attention over time, a linear classifier
  python training/recurrent_classification.py training/recipes/sst2-rnn-tanhmax.yaml

  # your own texts, with a bidirectional LSTM and the additive layer of many tutorials
  python training/recurrent_classification.py --train_file train.csv --test_file test.csv --encoder lstm \\
      --bidirectional --attn_score feed_forward --output_dir runs/mine

A recipe is a YAML file of the options below; options on the command line override it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForSequenceClassification and AutoTokenizer, with trust_remote_code=True in both.
"""

import hf_bidir.cli.start  # isort: skip  # noqa: F401  (first: before torch and transformers)

from dataclasses import dataclass
from typing import Any

from transformers import DataCollatorWithPadding, set_seed

from hf_bidir.cli.script import Options, parse, run_script
from hf_bidir.finetune.arguments import RunArguments, ScheduleArguments, TextDataArguments, option
from hf_bidir.finetune.data.text_data import fit_max_length, read_texts, tokenize
from hf_bidir.finetune.data.tokenizer import train_words
from hf_bidir.finetune.metrics import classification_metrics, predicted_classes
from hf_bidir.finetune.models import (
    build_model,
    check_options,
    checkpoint_config,
    saved_tokenizer,
    starts_as_softmax,
)
from hf_bidir.finetune.run import Run
from hf_bidir.finetune.trainer import SignedTrainer
from hf_bidir.hub.card import write_card
from hf_bidir.recurrent.configuration_bidir_rnn import ATTN_SCORES, CLASSIFIER_SCOPES
from hf_bidir.recurrent.options import RecurrentArguments, recurrent_config

HEAD = "AutoModelForSequenceClassification"


@dataclass
class RnnModelArguments(RecurrentArguments):
    """Model options of recurrent text classification."""

    encoder: str = option("none", "From scratch: the encoder, none (attention over the embeddings), lstm or gru.")
    attn_score: str = option("per_token", "From scratch: the alignment score.", choices=list(ATTN_SCORES))
    attn_scale: float = option(5.0, "From scratch: the divisor of the per-token score.")
    attn_scope: str = option(
        "global",
        "From scratch: the positions attended to, global or local-p (around a predicted position).",
        choices=list(CLASSIFIER_SCOPES),
    )
    attn_window: int | None = option(None, "From scratch: positions on either side, for attn_scope local-p.")


OPTIONS = (TextDataArguments, RnnModelArguments, ScheduleArguments, RunArguments)


def main(options: Options = None) -> dict[str, Any]:
    """Train as the options say, by default those of the command line; return the numbers of all_results.json."""
    data, shape, schedule, args = parse(OPTIONS, options, __doc__)
    check_options(shape, args.typed)
    source = shape.model_name_or_path

    splits = read_texts(data)
    if source:
        config = checkpoint_config(HEAD, shape, splits.names)
        tokenizer = saved_tokenizer(source, config)
    else:
        tokenizer = train_words(
            splits.train["text"][:], vocab_size=shape.vocab_size, max_length=data.max_length, lowercase=shape.lowercase
        )
        config = recurrent_config(shape, tokenizer, data.max_length, splits.names)
    if data.truncation_side:
        tokenizer.truncation_side = data.truncation_side  # saved with the tokenizer
    set_seed(args.seed)
    model = build_model(HEAD, shape, config)
    fit_max_length(data, model)

    splits = tokenize(splits, tokenizer, data.max_length)
    trainer = SignedTrainer(
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
