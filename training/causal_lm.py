"""Train a causal language model with signed attention, from scratch or from any checkpoint of a decoder.

examples:
  # from scratch: a byte-level BPE of the training split, and a model with the architecture of Llama
  python training/causal_lm.py training/recipes/imdb-lm-tanhmax.yaml

  # your own text, a document per line (or --sample_by paragraph, document), and another one to evaluate on
  python training/causal_lm.py --train_file mine.txt --validation_file held-out.txt --output_dir runs/mine

  # continue training a softmax checkpoint of the Hub while its negative mass rises
  python training/causal_lm.py --model_name_or_path HuggingFaceTB/SmolLM2-135M --train_file mine.txt \\
      --negative_mass_until 0.5 --learning_rate 5e-5 --output_dir runs/smol-mine

  # some heads signed, the others softmax
  python training/causal_lm.py training/recipes/imdb-lm-hybrid.yaml

Texts are joined, each followed by the token that ends a text, and cut into blocks: there is no padding, and a block may
span several texts, as in GPT-2. The perplexity is per token, on at most --max_eval_samples blocks of the
validation split; it is not comparable across tokenizers.

A recipe is a YAML file of the options below; options on the command line override it. A run that was interrupted
continues when the same command is given again; torchrun --nproc_per_node 2 training/causal_lm.py … distributes it over
processes. The output folder loads with AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True), and
hf-bidir explain FOLDER "The film was" shows what supports and opposes the next token.
"""

from collections.abc import Sequence
from typing import Any

from hf_bidir.cli.script import run_script, train
from hf_bidir.finetune.tasks.causal_lm import causal_lm


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    return train(causal_lm, argv, __doc__)


if __name__ == "__main__":
    run_script(main)
