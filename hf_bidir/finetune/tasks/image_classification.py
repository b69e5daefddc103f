"""Image classification with any checkpoint, or a new ViT."""

from typing import Any

from transformers import set_seed

from hf_bidir import BidirViTConfig
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import ImageModelArguments, RunArguments, ScheduleArguments
from hf_bidir.finetune.data.arguments import ImageDataArguments
from hf_bidir.finetune.data.image_data import (
    ImageCollator,
    checkpoint_processor,
    guessed_image_size,
    guessed_patch_size,
    new_image_processor,
    read_image_splits,
)
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.models import (
    build_model,
    check_given,
    checkpoint_config,
    scratch_config,
    starts_as_softmax,
)
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.schedule_options import check_schedule
from hf_bidir.finetune.task import Task

HEAD = "AutoModelForImageClassification"


def _train(
    data: ImageDataArguments,
    arguments: ImageModelArguments,
    schedule: ScheduleArguments,
    args: RunArguments,
    given: dict[str, Any],
) -> dict[str, Any]:
    check_given(arguments, given)
    check_schedule(schedule, arguments, given)
    splits = read_image_splits(data)
    if arguments.model_name_or_path:
        config = checkpoint_config(HEAD, arguments, splits.names)
        processor = checkpoint_processor(arguments.model_name_or_path, config)
    else:
        config = from_scratch(arguments, splits)
        processor = new_image_processor(config.image_size)
    args.remove_unused_columns = False  # the collator, not the model, takes the image column
    set_seed(args.seed)
    return finetune(
        build_model(HEAD, arguments, config),
        splits,
        task="image-classification",
        args=args,
        data=data,
        given=given,
        processing_class=processor,
        collator=ImageCollator.of(processor, data),
        eval_collator=ImageCollator(processor),
        schedule=schedule,
        centre=arguments.centre and starts_as_softmax(arguments.model_name_or_path),
    )


def from_scratch(arguments: ImageModelArguments, splits: Splits) -> BidirViTConfig:
    """The config of a new model for RGB images; grey ones become RGB."""
    size = arguments.image_size or guessed_image_size(splits.train)
    patch = guessed_patch_size(size) if arguments.patch_size is None else arguments.patch_size
    if patch < 1 or size % patch:
        divisors = ", ".join(str(side) for side in range(1, size + 1) if size % side == 0)
        raise InputError(f"expected patch_size to divide image_size {size}: one of {divisors}; got {patch}")
    return scratch_config(BidirViTConfig, arguments, splits.names, image_size=size, patch_size=patch, num_channels=3)


image_classification = Task((ImageDataArguments, ImageModelArguments, ScheduleArguments, RunArguments), _train)
