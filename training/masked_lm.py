"""Continue masked language modelling on plain text while the negative mass rises.

examples:
  # an encoder from the Hub on your own text, one document per line; the negative mass rises over the first half
  python training/masked_lm.py --model_name_or_path google-bert/bert-base-uncased --train_file domain.txt \\
      --negative_mass_until 0.5 --output_dir runs/bert-domain

  # the same on a data set of the Hub, with a slower rise
  python training/masked_lm.py --model_name_or_path google-bert/bert-base-uncased --dataset_name stanfordnlp/imdb \\
      --negative_mass_until 0.7 --output_dir runs/bert-imdb

A checkpoint without a language modelling head gets a new, random one.

A recipe is a YAML file of the options below; options on the command line override it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForMaskedLM and AutoTokenizer, with trust_remote_code=True in both.
"""

import hf_bidir.cli.start  # isort: skip  # noqa: F401  (first: before torch and transformers)

from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import EvalPrediction, set_seed

from hf_bidir.cli.script import Options, parse, run_script
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import (
    AdapterArguments,
    ScheduleArguments,
    StepArguments,
    UnlabelledTextArguments,
    option,
)
from hf_bidir.finetune.data.splits import sampled
from hf_bidir.finetune.data.text_data import MaskingCollator, cut_into_snippets, fit_max_length, read_documents
from hf_bidir.finetune.models import build_model, check_options, checkpoint_config, saved_tokenizer, starts_as_softmax
from hf_bidir.finetune.run import Run
from hf_bidir.finetune.trainer import SignedTrainer
from hf_bidir.hub.card import write_card

HEAD = "AutoModelForMaskedLM"


@dataclass
class MaskedTextArguments(UnlabelledTextArguments):
    """Data options of masked language modelling."""

    mask_share: float = option(0.15, "The share of tokens to mask, between 0 and 1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask_share < 1:
            raise InputError(f"expected --mask_share between 0 and 1; got {self.mask_share}")


OPTIONS = (MaskedTextArguments, AdapterArguments, ScheduleArguments, StepArguments)


def main(options: Options = None) -> dict[str, Any]:
    """Train as the options say, by default those of the command line; return the numbers of all_results.json."""
    data, start, schedule, args = parse(OPTIONS, options, __doc__)
    source = start.model_name_or_path
    if not source:
        raise InputError("expected --model_name_or_path: the checkpoint of an encoder, softmax or bidir")
    check_options(start, args.typed)

    config = checkpoint_config(HEAD, start, names=[])
    tokenizer = saved_tokenizer(source, config)
    if tokenizer.mask_token is None:
        raise InputError(f"the tokenizer of {source} has no mask token; choose a masked language model")
    set_seed(args.seed)
    model = build_model(HEAD, start, config)
    fit_max_length(data, model)
    splits = sampled(cut_into_snippets(read_documents(data), tokenizer, data.max_length), data)

    trainer = SignedTrainer(
        model=model,
        args=args,
        train_dataset=splits.train,
        eval_dataset=splits.validation,
        processing_class=tokenizer,
        data_collator=MaskingCollator(tokenizer, data.mask_share),
        compute_metrics=masked_word_metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
    )
    run = Run(trainer, "masked-lm", data, splits, schedule)
    results = run.train_and_save(centre=starts_as_softmax(source))
    if args.should_save:
        print(f"Model card: {write_card(args.output_dir)}")
    return results


def masked_word_metrics(evaluation: EvalPrediction) -> dict[str, float]:
    """`masked_accuracy` in [0, 1]: the share of masked tokens (label not -100) that are predicted."""
    masked = evaluation.label_ids != -100
    return {"masked_accuracy": np.mean(evaluation.predictions[masked] == evaluation.label_ids[masked])}


if __name__ == "__main__":
    run_script(main)
