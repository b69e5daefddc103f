"""Train an encoder-decoder on pairs of sequences: a new recurrent one with attention (Bahdanau et al. 2015, Luong et
al. 2015), or a checkpoint of BART, Marian or T5, whose self- and cross-attention become signed.

examples:
  # sort eight numbers
  python -m research.mechanisms.data sorting runs/sorting
  python training/seq2seq.py training/recipes/sorting-rnn-tanhmax.yaml

  # your own pairs, in a table with the columns source and target, character by character
  python training/seq2seq.py --train_file pairs.csv --unit character --max_length 40 --output_dir runs/mine

  # a translation model of the Hub; its negative mass rises over the first half
  python training/seq2seq.py --model_name_or_path Helsinki-NLP/opus-mt-en-de --train_file pairs.csv \\
      --negative_mass_until 0.5 --learning_rate 5e-5 --metric_for_best_model loss --output_dir runs/en-de

A recipe is a YAML file of the options below; options on the command line override it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True), and
hf-bidir explain FOLDER "17 4 93" draws the alignment.
"""

from collections.abc import Sequence
from typing import Any

from hf_bidir.cli.script import run_script, train
from hf_bidir.finetune.tasks.seq2seq import seq2seq


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    return train(seq2seq, argv, __doc__)


if __name__ == "__main__":
    run_script(main)
