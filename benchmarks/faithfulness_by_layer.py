"""Which attention measure ranks tokens as erasure and gradients do, layer by layer? The table of Abnar & Zuidema 2020.

    DATA="--train_file DIR/sva_linzen/train.parquet --validation_file DIR/sva_linzen/validation.parquet \\
        --test_file DIR/sva_linzen/test.parquet --text_column masked --class_names singular plural --eval_steps 0.334"
    python training/text_classification.py training/recipes/sst2-minilm-softmax.yaml $DATA \\
        --output_dir runs/agreement-softmax
    python training/text_classification.py training/recipes/sst2-minilm-softmax.yaml $DATA --attn_activation tanhmax \\
        --model_name_or_path runs/minilm-healed-barely --output_dir runs/agreement-tanhmax
    python benchmarks/faithfulness_by_layer.py --data-dir DIR \\
        --sst2 softmax=runs/sst2-minilm-softmax tanhmax=runs/sst2-minilm-healed-first \\
        --agreement softmax=runs/agreement-softmax tanhmax=runs/agreement-tanhmax

benchmarks/human_sentiment.py shows how to train the SST-2 models and runs/minilm-healed-barely. `DIR` holds
sst2/test.parquet and sva_linzen/test.parquet (the number of the verb behind [MASK]). Spearman
correlation over the word pieces of a sentence between the magnitudes of a measure and those of two references: the
change of the predicted class's logit when the piece is deleted ("erasure"), and input times gradient ("gradient");
mean over sentences. The table
goes to benchmarks/results/faithfulness_by_layer.md.
"""

import argparse
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from explained import load, named_folder, sample
from measure import write_table
from scipy.stats import spearmanr
from tqdm import tqdm

from hf_bidir.explain import read_text, token_scores

RESULTS = Path(__file__).parent / "results"
BY_LAYER = ("attention", "rollout", "flow", "values", "contributions")
REFERENCES = {"erasure": "erasure-token", "gradient": "gradient"}
TASKS = {"sst2": ("sst2/test.parquet", "text"), "agreement": ("sva_linzen/test.parquet", "masked")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds sst2/ and sva_linzen/")
    for task in TASKS:
        parser.add_argument(f"--{task}", type=named_folder, nargs="+", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--sentences", type=int, default=200, help="of each test split")
    parser.add_argument("--results", type=Path, default=RESULTS / "faithfulness_by_layer.md")
    options = parser.parse_args()
    rows, layers = [], 0
    for task, (file, column) in TASKS.items():
        texts = [row[column] for row in sample(options.data_dir / file, options.sentences)]
        for name, folder in getattr(options, task):
            model, tokenizer = load(folder)
            layers = model.config.num_hidden_layers
            rows += table_of(model, tokenizer, texts, f"{task}, {name}")
    notes = (
        f"{options.sentences} test sentences of each task, special tokens left out of the ranking. Rollout and flow "
        "of a layer cover the layers up to it. "
        + " ".join(f"{task}, {name}: `{folder.name}`." for task in TASKS for name, folder in getattr(options, task))
    )
    header = ["model", "reference", "measure", *(f"layer {layer}" for layer in range(layers))]
    write_table(options.results, "Spearman correlation with erasure and gradients", notes, header, rows, "cpu")


def table_of(model, tokenizer, texts: list[str], name: str) -> list[list[str]]:
    """One row per reference and measure, one column per layer."""
    layers = range(model.config.num_hidden_layers)
    found = {(reference, measure): [[] for _ in layers] for reference in REFERENCES for measure in BY_LAYER}
    for text in tqdm(texts, desc=name, unit="sentence"):
        example = read_text(tokenizer, text, model.config.max_position_embeddings)
        target = model(**example.inputs).logits.argmax(-1)
        words = ~torch.tensor(example.special)[example.token_of_piece]

        def sizes(method, **options):
            return token_scores(model, example.inputs, method, target, **options)[0, words].abs().numpy()  # noqa: B023

        references = {reference: sizes(method) for reference, method in REFERENCES.items()}
        for measure in BY_LAYER:
            for layer in layers:
                measured = sizes(measure, layer=layer)
                for reference, values in references.items():
                    correlation = spearmanr(measured, values).statistic
                    if not np.isnan(correlation):
                        found[reference, measure][layer].append(correlation)
    return [
        [name, *key, *(f"{mean(values):.2f}" if values else "" for values in by_layer)]
        for key, by_layer in found.items()
    ]


if __name__ == "__main__":
    main()
