"""Text classification from the command line to the finished folder, for any family of models."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import DataCollatorWithPadding, PretrainedConfig, PreTrainedTokenizerBase, set_seed

from hf_bidir.finetune.arguments import PretrainedArguments, RunArguments, ScheduleArguments, TextDataArguments
from hf_bidir.finetune.models import (
    Family,
    build_model,
    check_given,
    checkpoint_config,
    saved_tokenizer,
    starts_as_softmax,
)
from hf_bidir.finetune.recipe import parse_recipe
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.schedule_options import check_schedule
from hf_bidir.finetune.splits import Splits
from hf_bidir.finetune.text_data import check_max_length, read_texts, tokenize

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
    family: Family,
    from_scratch: FromScratch,
    second_task: Callable[[PretrainedArguments, PreTrainedTokenizerBase], dict[str, Any]] = lambda *_: {},
) -> dict[str, Any]:
    """Read the command line and the data, and fine-tune a checkpoint or a new model.

    Args:
        argv, options, description: as in `parse_recipe`.
        family: the head, its config, and the stock checkpoints that load into it.
        from_scratch: makes tokenizer and config of a new model, when no checkpoint was named.
        second_task: makes the options of `finetune` that train something beside the classes.

    Returns:
        The numbers of all_results.json.

    Raises:
        InputError: an option, the data or the checkpoint cannot be used.
    """
    data, arguments, schedule, args, given = parse_recipe(options, argv, description)
    check_given(arguments, given)
    check_schedule(schedule, arguments, given)
    splits = read_texts(data)
    if arguments.model_name_or_path:
        config = checkpoint_config(family, arguments, splits.names)
        tokenizer = saved_tokenizer(arguments.model_name_or_path)
    else:
        tokenizer, config = from_scratch(data, arguments, splits)
    if data.truncation_side:
        tokenizer.truncation_side = data.truncation_side  # which is saved with it
    check_max_length(data.max_length, config, arguments.model_name_or_path)
    set_seed(args.seed)
    return finetune(
        build_model(family, arguments, config),
        tokenize(splits, tokenizer, data.max_length),
        task="text-classification",
        args=args,
        data=data,
        given=given,
        processing_class=tokenizer,
        schedule=schedule,
        centre=arguments.centre and starts_as_softmax(arguments.model_name_or_path),
        **{"collator": DataCollatorWithPadding(tokenizer)} | second_task(arguments, tokenizer),
    )
