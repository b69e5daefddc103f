"""Train a small recurrent model, or attention over word embeddings alone, to classify texts.

examples:
  # SST-2 from the Hub, the model of the TanhMax paper: embeddings, attention over time, a linear classifier
  python training/recurrent_classification.py training/recipes/sst2-rnn-tanhmax.yaml

  # your own texts, with a bidirectional LSTM and the additive layer of many tutorials
  python training/recurrent_classification.py --train_file train.csv --test_file test.csv --encoder lstm \\
      --bidirectional --attn_score feed_forward --output_dir runs/mine

A recipe is a YAML file of the options below; options on the command line override it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).
"""

from collections.abc import Sequence
from typing import Any

from hf_bidir.cli.script import run_script, train
from hf_bidir.finetune.tasks.recurrent_classification import recurrent_classification


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    return train(recurrent_classification, argv, __doc__)


if __name__ == "__main__":
    run_script(main)
