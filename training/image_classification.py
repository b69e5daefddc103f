"""Fine-tune a model with signed attention to classify images: any checkpoint of transformers, or a new ViT.

examples:
  # your own photographs, one folder per class; by default they are resized to squares of at most 64 pixels
  python training/image_classification.py --train_file photos/train --test_file photos/test --output_dir runs/photos

  # the handwritten digits of scikit-learn: no download, a few minutes on two cores
  python training/image_classification.py training/recipes/digits-tanhmax.yaml

  # Fashion-MNIST from its IDX files; each label file lies beside its image file
  python training/image_classification.py training/recipes/fashion-mnist-tanhmax.yaml \\
      --train_file train-images-idx3-ubyte.gz --test_file t10k-images-idx3-ubyte.gz

  # parquet with image bytes; folders, from a checkpoint
  python training/image_classification.py --train_file train.parquet --test_file test.parquet \\
      --flip --shift 4 --output_dir runs/mine
  python training/image_classification.py --train_file photos/train --test_file photos/test \\
      --model_name_or_path facebook/dinov2-small --learning_rate 5e-5 --output_dir runs/photos-dinov2

  # two processes on one machine
  torchrun --nproc_per_node 2 training/image_classification.py training/recipes/digits-tanhmax.yaml

A new model trains until validation stops improving unless --num_train_epochs or --max_steps is given.

A recipe is a YAML file of the options below; options on the command line override it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=True).
"""

from collections.abc import Sequence
from typing import Any

from hf_bidir.cli.script import run_script, train
from hf_bidir.finetune.tasks.image_classification import image_classification


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    return train(image_classification, argv, __doc__)


if __name__ == "__main__":
    run_script(main)
