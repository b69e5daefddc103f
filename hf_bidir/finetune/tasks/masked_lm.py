"""Masked language modelling with any checkpoint of an encoder."""

from dataclasses import dataclass
from typing import Any

from transformers import set_seed

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import AdapterArguments, HealingArguments, ScheduleArguments
from hf_bidir.finetune.data.arguments import UnlabelledTextArguments, option
from hf_bidir.finetune.data.masking import MaskingCollator
from hf_bidir.finetune.data.text_data import fit_max_length
from hf_bidir.finetune.data.unlabelled_data import read_snippets
from hf_bidir.finetune.metrics import masked_word_metrics, predicted_classes
from hf_bidir.finetune.models import build_model, check_given, checkpoint_config, saved_tokenizer, starts_as_softmax
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.schedule_options import check_schedule
from hf_bidir.finetune.task import Task

HEAD = "AutoModelForMaskedLM"


@dataclass
class MaskedTextArguments(UnlabelledTextArguments):
    """Data options of masked language modelling."""

    mask_share: float = option(0.15, "The share of tokens to mask, between 0 and 1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask_share < 1:
            raise InputError(f"expected mask_share between 0 and 1; got {self.mask_share}")


def _train(
    data: MaskedTextArguments,
    arguments: AdapterArguments,
    schedule: ScheduleArguments,
    args: HealingArguments,
    given: dict[str, Any],
) -> dict[str, Any]:
    if not arguments.model_name_or_path:
        raise InputError("expected --model_name_or_path: the checkpoint of an encoder, softmax or bidir")
    source = arguments.model_name_or_path
    check_given(arguments, given)
    check_schedule(schedule, arguments, given)
    config = checkpoint_config(HEAD, arguments, names=[])
    tokenizer = saved_tokenizer(source, config)
    if tokenizer.mask_token is None:
        raise InputError(f"the tokenizer of {source} has no mask token; choose a masked language model")
    set_seed(args.seed)
    model = build_model(HEAD, arguments, config)
    fit_max_length(data, given, model, source)
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


masked_lm = Task((MaskedTextArguments, AdapterArguments, ScheduleArguments, HealingArguments), _train)
