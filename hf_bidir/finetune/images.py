"""Image classification, from the command line's options to the finished folder."""

from collections.abc import Sequence
from typing import Any

from transformers import AutoImageProcessor, BaseImageProcessor, PretrainedConfig, set_seed

from hf_bidir import (
    BidirDeiTConfig,
    BidirDeiTForImageClassification,
    BidirViTConfig,
    BidirViTForImageClassification,
)
from hf_bidir.finetune.arguments import ImageDataArguments, ImageModelArguments, RunArguments, ScheduleArguments
from hf_bidir.finetune.errors import InputError
from hf_bidir.finetune.image_data import (
    ImageCollator,
    guessed_image_size,
    new_image_processor,
    read_image_splits,
)
from hf_bidir.finetune.models import (
    Family,
    build_model,
    check_given,
    checkpoint_config,
    family_of,
    scratch_config,
    starts_as_softmax,
)
from hf_bidir.finetune.recipe import parse_recipe
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.schedule_options import check_schedule
from hf_bidir.finetune.splits import Splits

OPTIONS = (ImageDataArguments, ImageModelArguments, ScheduleArguments, RunArguments)
VIT = Family(BidirViTForImageClassification, BidirViTConfig, stock_type="vit")
DEIT = Family(BidirDeiTForImageClassification, BidirDeiTConfig, stock_type="deit")


def finetune_images(argv: Sequence[str] | None, description: str = "") -> dict[str, Any]:
    """Read the command line and the images, and fine-tune a checkpoint or a new ViT.

    Args:
        argv, description: as in `parse_recipe`.

    Returns:
        The numbers of all_results.json.

    Raises:
        InputError: an option, the data or the checkpoint cannot be used.
    """
    data, arguments, schedule, args, given = parse_recipe(OPTIONS, argv, description)
    check_given(arguments, given)
    check_schedule(schedule, arguments, given)
    family = family_of((VIT, DEIT), arguments.model_name_or_path)
    splits = read_image_splits(data)
    if arguments.model_name_or_path:
        config = checkpoint_config(family, arguments, splits.names)
        processor = checkpoint_processor(arguments.model_name_or_path, config)
    else:
        config = from_scratch(arguments, splits)
        processor = new_image_processor(config.image_size)
    args.remove_unused_columns = False  # the collator, not the model, takes the image column
    set_seed(args.seed)
    return finetune(
        build_model(family, arguments, config),
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
    size, patch = arguments.image_size or guessed_image_size(splits.train), arguments.patch_size
    if patch < 1 or size % patch:
        divisors = ", ".join(str(side) for side in range(1, size + 1) if size % side == 0)
        raise InputError(f"expected patch_size to divide image_size {size}: one of {divisors}; got {patch}")
    return scratch_config(VIT, arguments, splits.names, image_size=size, patch_size=patch, num_channels=3)


def checkpoint_processor(source: str, config: PretrainedConfig) -> BaseImageProcessor:
    """The checkpoint's own image processor, or a new one for its image size when it was saved without."""
    if config.num_channels != 3:
        raise InputError(f"expected a checkpoint for RGB images; {source} has num_channels={config.num_channels}")
    try:
        return AutoImageProcessor.from_pretrained(source)
    except OSError:
        return new_image_processor(config.image_size)
