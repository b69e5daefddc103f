"""Text classification from the command line to the finished folder, whatever the model."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import DataCollatorWithPadding, PretrainedConfig, PreTrainedTokenizerBase, set_seed

from hf_bidir.finetune.arguments import PretrainedArguments, RunArguments, ScheduleArguments, TextDataArguments
from hf_bidir.finetune.models import (
    build_model,
    check_given,
    checkpoint_config,
    know_padding,
    saved_tokenizer,
    starts_as_softmax,
)
from hf_bidir.finetune.recipe import parse_recipe
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.schedule_options import check_schedule
from hf_bidir.finetune.splits import Splits
from hf_bidir.finetune.text_data import check_max_length, read_texts, tokenize

HEAD = "AutoModelForSequenceClassification"
FromScratch = Callable[
    [TextDataArguments, PretrainedArguments, Splits], tuple[PreTrainedTokenizerBase, PretrainedConfig]
]


def text_options(model_arguments: type[PretrainedArguments]) -> tuple[type, ...]:
    """The dataclasses of a script's options."""
    return (TextDataArguments, model_arguments, ScheduleArguments, RunArguments)


def finetune_texts(
    argv: Sequence[str] | None,
    options: tuple[type, ...],
    description: str,
    from_scratch: FromScratch,
    second_task: Callable[[PretrainedArguments, PreTrainedTokenizerBase], dict[str, Any]] = lambda *_: {},
) -> dict[str, Any]:
    """Read the command line and the data, and fine-tune a checkpoint or a new model.

    Args:
        argv, options, description: as in `parse_recipe`.
        from_scratch: makes tokenizer and config of a new model, when no checkpoint was named.
        second_task: makes the options of `finetune` that train something beside the classes.

    Returns:
        The numbers of all_results.json.

    Raises:
        InputError: an option, the data or the checkpoint cannot be used.
    """
    data, arguments, schedule, args, given = parse_recipe(options, argv, description)
    source = arguments.model_name_or_path
    check_given(arguments, given)
    check_schedule(schedule, arguments, given)
    splits = read_texts(data)
    if source:
        config, tokenizer = checkpoint_config(HEAD, arguments, splits.names), saved_tokenizer(source)
        know_padding(config, tokenizer)
    else:
        tokenizer, config = from_scratch(data, arguments, splits)
    if data.truncation_side:
        tokenizer.truncation_side = data.truncation_side  # which is saved with it
    set_seed(args.seed)
    model = build_model(HEAD, arguments, config)
    check_max_length(data.max_length, model, source)
    return finetune(
        model,
        tokenize(splits, tokenizer, data.max_length),
        task="text-classification",
        args=args,
        data=data,
        given=given,
        processing_class=tokenizer,
        schedule=schedule,
        centre=arguments.centre and starts_as_softmax(source),
        **{"collator": DataCollatorWithPadding(tokenizer)} | second_task(arguments, tokenizer),
    )
