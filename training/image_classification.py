"""Fine-tune a model with signed attention to classify images: any checkpoint of transformers, or a new ViT.

examples:
  # your own photographs, one folder per class; by default they are resized to squares of 64 pixels
  python training/image_classification.py --train_file photos/train --test_file photos/test --output_dir runs/photos

  # the handwritten digits of scikit-learn: no download, a few minutes on two cores
  python training/image_classification.py training/recipes/digits-tanhmax.yaml

  # Fashion-MNIST from the Hub
  python training/image_classification.py training/recipes/fashion-mnist-tanhmax.yaml

  # parquet with image bytes; folders, from a checkpoint
  python training/image_classification.py --train_file train.parquet --test_file test.parquet \\
      --flip --shift 4 --output_dir runs/mine
  python training/image_classification.py --train_file photos/train --test_file photos/test \\
      --model_name_or_path facebook/dinov2-small --learning_rate 5e-5 --output_dir runs/photos-dinov2

  # two processes on one machine
  torchrun --nproc_per_node 2 training/image_classification.py training/recipes/digits-tanhmax.yaml

A recipe is a YAML file of the options below; options on the command line override it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForImageClassification and AutoImageProcessor, with trust_remote_code=True in both.
"""

import hf_bidir.cli.start  # isort: skip  # noqa: F401  (first: before torch and transformers)

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import set_seed

from hf_bidir import BidirViTConfig
from hf_bidir.cli.script import Options, parse, run_script
from hf_bidir.common.errors import InputError
from hf_bidir.common.images import image_mode
from hf_bidir.finetune.arguments import ImageDataArguments, ModelArguments, RunArguments, ScheduleArguments, option
from hf_bidir.finetune.data.image_data import (
    ImageCollator,
    new_image_processor,
    read_image_splits,
    saved_image_processor,
)
from hf_bidir.finetune.metrics import classification_metrics, predicted_classes
from hf_bidir.finetune.models import build_model, check_options, checkpoint_config, scratch_config, starts_as_softmax
from hf_bidir.finetune.run import Run
from hf_bidir.finetune.trainer import SignedTrainer
from hf_bidir.hub.card import write_card

HEAD = "AutoModelForImageClassification"


@dataclass
class ImageModelArguments(ModelArguments):
    """Model options of image classification."""

    hidden_size: int = option(64, "From scratch: the width of the model.")
    intermediate_size: int = option(256, "From scratch: the width of the feed-forward layers.")
    dropout: float = option(0.0, "From scratch: dropout of hidden states and of attention coefficients.")
    patch_size: int = option(8, "From scratch: the side of a patch; must divide image_size.")


OPTIONS = (ImageDataArguments, ImageModelArguments, ScheduleArguments, RunArguments)


def main(options: Options = None, trainer_class: Callable[..., SignedTrainer] = SignedTrainer) -> dict[str, Any]:
    """Train as the options say, by default those of the command line; return the numbers of all_results.json."""
    data, shape, schedule, args = parse(OPTIONS, options, __doc__)
    check_options(shape, args.typed)
    source = shape.model_name_or_path

    splits = read_image_splits(data)
    if source:
        config = checkpoint_config(HEAD, shape, splits.names)
        processor = saved_image_processor(source, data.image_size)
    else:
        size, patch = data.image_size or 64, shape.patch_size
        if patch < 1 or size % patch:
            divisors = ", ".join(str(side) for side in range(1, size + 1) if size % side == 0)
            raise InputError(f"expected patch_size to divide image_size {size}: one of {divisors}; got {patch}")
        pixels = {"image_size": size, "patch_size": patch, "num_channels": 3}  # grey images become RGB
        config = scratch_config(BidirViTConfig, shape, splits.names, **pixels)
        processor = new_image_processor(size)
    set_seed(args.seed)
    model = build_model(HEAD, shape, config)
    mode = image_mode(model.config)

    args.remove_unused_columns = False  # the collator, not the model, takes the image column
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=splits.train,
        eval_dataset=splits.validation,
        processing_class=processor,
        data_collator=ImageCollator(processor, data, mode),
        eval_collator=ImageCollator(processor, mode=mode),
        compute_metrics=classification_metrics(splits.names),
        preprocess_logits_for_metrics=predicted_classes,
    )
    run = Run(trainer, "image-classification", data, splits, schedule)
    results = run.train_and_save(centre=starts_as_softmax(source))
    if args.should_save:
        print(f"Model card: {write_card(args.output_dir)}")
    return results


if __name__ == "__main__":
    run_script(main)
