"""Heal a converted model: distillation that restores the softmax model's hidden states in the signed student.

examples:
  # an encoder from the Hub, on any text without labels (txt, parquet, csv, tsv, json, jsonl)
  python training/distill.py --model_name_or_path google-bert/bert-base-uncased --train_file wiki.txt \\
      --output_dir runs/bert-healed

  # MiniLM on reviews
  python training/distill.py training/recipes/minilm-healed.yaml --train_file imdb.parquet sst2.parquet

  # a decoder: balanced attention, matched by the next token
  python training/distill.py --model_name_or_path HuggingFaceTB/SmolLM2-135M --train_file wiki.txt \\
      --output_dir runs/smol-healed

  # a vision model of transformers, or a ViT of timm, on images
  python training/distill.py --model_name_or_path google/vit-base-patch16-224 --train_file photos/ \\
      --output_dir runs/vit-healed
  python training/distill.py --model_name_or_path timm:vit_tiny_patch16_224 --train_file photos/ \\
      --output_dir runs/vit-tiny-healed

The student starts as the teacher, with centred keys and values, which does not change softmax attention
(layers without biases, such as Llama's, are not centred). Then its negative mass gets its final value, at once or
slowly (--negative_mass_until), and it learns to match the teacher's hidden states in every layer, and its logits, for
one pass over the data, but 300 to 1,000 steps (--max_steps). The best checkpoint has the smallest loss of evaluation:
the divergence from the teacher's classes or tokens, or without a head the relative error of the last hidden states.
No labels are needed, and one healed checkpoint serves every later task: fine-tune it with text_classification.py,
causal_lm.py or image_classification.py --model_name_or_path FOLDER.

A model that generates text reads joined texts and matches the teacher's next token instead of its states (--match
logits). A softmax checkpoint of one gets balanced attention with λ = 0.2 by default, because pretrained language
models recover slowly from TanhMax. A signed checkpoint keeps its activation.

The reported agreement is the share of predictions that are equal to the teacher's. The relative error is the squared
distance of the hidden states (and the logits) to the teacher's, as a share of their squared norm, on average over
layers and tokens: 0 is equal. For a language model the perplexity of student and teacher is reported beside it.

Matching alone reduces negative coefficients. --keep_signs true keeps them in use by penalties on heads whose output
comes from one sign, and on predictions that stay the same without negative coefficients; with --match logits the second
alone. The student then predicts less often like its teacher.

A recipe is a YAML file of the options below; options on the command line override it. A run that was
interrupted continues when the same command is given again.
"""

import hf_bidir.cli.start  # isort: skip  # noqa: F401  (first: before torch and transformers)

from typing import Any

from hf_bidir.cli.script import Options, parse, run_script
from hf_bidir.finetune.heal import HEALING, heal
from hf_bidir.hub.card import write_card

OPTIONS = HEALING


def main(options: Options = None) -> dict[str, Any]:
    """Heal as the options say, by default those of the command line; return the numbers of all_results.json."""
    return heal(*parse(OPTIONS, options, __doc__), card=write_card)


if __name__ == "__main__":
    run_script(main)
