"""Continue masked language modelling on plain text while the negative mass rises.

examples:
  # an encoder from the Hub on your own text, one document per line; the negative mass rises over the first half
  python training/masked_lm.py --model_name_or_path google-bert/bert-base-uncased --train_file domain.txt \\
      --negative_mass_until 0.5 --output_dir runs/bert-domain

  # the same on a data set of the Hub, with a slower rise
  python training/masked_lm.py --model_name_or_path google-bert/bert-base-uncased --dataset_name stanfordnlp/imdb \\
      --negative_mass_until 0.7 --output_dir runs/bert-imdb

If the softmax model is available, training/distill.py reaches its accuracy sooner; this script also adapts the model
to the text. A checkpoint without a language modelling head gets a new, random one.

A recipe is a YAML file of the options below; options on the command line override it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).
"""

from collections.abc import Sequence
from typing import Any

from hf_bidir.cli.script import run_script, train
from hf_bidir.finetune.tasks.masked_lm import masked_lm


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    return train(masked_lm, argv, __doc__)


if __name__ == "__main__":
    run_script(main)
