"""Fine-tune a model with signed attention to classify texts: any checkpoint of transformers, or a new BERT.

examples:
  # your own texts: csv, tsv, json or parquet with a text and a label column
  python training/text_classification.py --train_file train.csv --test_file test.csv --output_dir runs/mine

  # SST-2 from the Hub, small BERT from scratch, TanhMax attention
  python training/text_classification.py training/recipes/sst2-tanhmax.yaml

  # the same recipe on local files (parquet, csv, tsv, json, jsonl), one setting changed
  python training/text_classification.py training/recipes/sst2-tanhmax.yaml \\
      --train_file train.parquet --validation_file validation.parquet --test_file test.parquet --seed 1

  # your own reviews, starting from a stock softmax checkpoint
  python training/text_classification.py --train_file reviews.csv --text_column review --label_column stars \\
      --model_name_or_path FacebookAI/roberta-base --learning_rate 3e-5 --num_train_epochs 3 \\
      --output_dir runs/reviews

  # two processes on one machine
  torchrun --nproc_per_node 2 training/text_classification.py training/recipes/sst2-tanhmax.yaml

A new model trains until validation stops improving unless --num_train_epochs or --max_steps is given.

A recipe is a YAML file of the options below; options on the command line override it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).
"""

from collections.abc import Sequence
from typing import Any

from hf_bidir.cli.script import run_script, train
from hf_bidir.finetune.tasks.text_classification import text_classification


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    return train(text_classification, argv, __doc__)


if __name__ == "__main__":
    run_script(main)
