"""Go on with masked language modelling on plain text, while the negative mass rises.

examples:
  # an encoder from the Hub on your own text, one document per line; the negative mass rises over the first half
  python training/masked_lm.py --model_name_or_path google-bert/bert-base-uncased --train_file domain.txt \\
      --negative_mass_until 0.5 --output_dir runs/bert-domain

  # layer by layer, on a data set of the Hub
  python training/masked_lm.py --model_name_or_path google-bert/bert-base-uncased --dataset_name stanfordnlp/imdb \\
      --negative_mass_until 0.7 --negative_mass_order bottom-up --output_dir runs/bert-imdb

Where the softmax model is at hand, training/distill.py is the shorter way to a checkpoint with its accuracy; this one
also learns what the text has to teach. A checkpoint without a language modelling head gets a new, random one.

A recipe is a YAML file of the options below; options on the command line win over it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import set_seed

from hf_bidir.finetune.arguments import (
    HealingArguments,
    PretrainedArguments,
    ScheduleArguments,
    UnlabelledTextArguments,
    option,
)
from hf_bidir.finetune.errors import InputError, run_script
from hf_bidir.finetune.masking import MaskingCollator
from hf_bidir.finetune.metrics import masked_word_metrics, predicted_classes
from hf_bidir.finetune.models import build_model, checkpoint_config, saved_tokenizer, starts_as_softmax
from hf_bidir.finetune.recipe import parse_recipe
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.schedule_options import check_schedule
from hf_bidir.finetune.text_data import check_max_length
from hf_bidir.finetune.unlabelled_data import read_snippets

HEAD = "AutoModelForMaskedLM"


@dataclass
class MaskedTextArguments(UnlabelledTextArguments):
    """Data options of masked language modelling."""

    mask_share: float = option(0.15, "The share of tokens to mask, between 0 and 1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask_share < 1:
            raise InputError(f"expected mask_share between 0 and 1; got {self.mask_share}")


OPTIONS = (MaskedTextArguments, PretrainedArguments, ScheduleArguments, HealingArguments)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    data, arguments, schedule, args, given = parse_recipe(OPTIONS, argv, __doc__)
    if not arguments.model_name_or_path:
        raise InputError("expected --model_name_or_path: the checkpoint of an encoder, softmax or bidir")
    source = arguments.model_name_or_path
    check_schedule(schedule, arguments, given)
    config, tokenizer = checkpoint_config(HEAD, arguments, names=[]), saved_tokenizer(source)
    if tokenizer.mask_token is None:
        raise InputError(f"the tokenizer of {source} has no token that masks a word; choose a masked language model")
    set_seed(args.seed)
    model = build_model(HEAD, arguments, config)
    check_max_length(data.max_length, model, source)
    return finetune(
        model,
        read_snippets(data, tokenizer),
        task="masked-lm",
        args=args,
        data=data,
        given=given,
        processing_class=tokenizer,
        collator=MaskingCollator(tokenizer, data.mask_share),
        schedule=schedule,
        centre=arguments.centre and starts_as_softmax(source),
        compute_metrics=masked_word_metrics,
        preprocess_logits_for_metrics=predicted_classes,
    )


if __name__ == "__main__":
    run_script(main)
