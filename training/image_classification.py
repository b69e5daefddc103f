"""Fine-tune a bidir ViT or DeiT to classify images, from scratch or from a checkpoint.

examples:
  # the handwritten digits that scikit-learn carries: no download, about a minute on two cores
  python training/image_classification.py training/recipes/digits-tanhmax.yaml

  # Fashion-MNIST from its IDX files; each label file lies beside its image file
  python training/image_classification.py training/recipes/fashion-mnist-tanhmax.yaml \\
      --train_file train-images-idx3-ubyte.gz --test_file t10k-images-idx3-ubyte.gz

  # parquet with image bytes, or folders with one folder per class
  python training/image_classification.py --train_file train.parquet --test_file test.parquet \\
      --patch_size 4 --flip --shift 4 --num_train_epochs 30 --output_dir runs/mine
  python training/image_classification.py --train_file photos/train --test_file photos/test \\
      --model_name_or_path google/vit-base-patch16-224-in21k --learning_rate 5e-5 --output_dir runs/photos

  # two processes on one machine
  torchrun --nproc_per_node 2 training/image_classification.py training/recipes/digits-tanhmax.yaml

A recipe is a YAML file of the options below; options on the command line win over it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=True).
"""

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
from hf_bidir.finetune.errors import InputError, run_script
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


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    data, arguments, schedule, args, given = parse_recipe(OPTIONS, argv, __doc__)
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
        collator=ImageCollator(processor, shift=data.shift, rotate=data.rotate, flip=data.flip),
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


if __name__ == "__main__":
    run_script(main)
