"""Do signed explanations agree with human word sentiment? Stanford Sentiment Treebank, a trained SST-2 model.

    python training/text_classification.py training/recipes/sst2-minilm-softmax.yaml
    python training/distill.py training/recipes/minilm-healed.yaml --max_steps 30 --keep_signs false \\
        --output_dir runs/minilm-healed-barely
    python training/text_classification.py training/recipes/sst2-minilm-softmax.yaml \\
        --attn_activation tanhmax --model_name_or_path runs/minilm-healed-barely \\
        --output_dir runs/sst2-minilm-healed-first
    python benchmarks/human_sentiment.py --data-dir DIR \\
        --models softmax=runs/sst2-minilm-softmax tanhmax=runs/sst2-minilm-healed-first

The recipes show how to read local files instead. `DIR` holds sst_trees/{train,test}.parquet. Every method scores each
word for the class "positive"; people labelled the words out of context from very negative (-2) to very positive (2).
Methods that need oriented heads orient them by training sentences. The table goes to
benchmarks/results/human_sentiment.md, scatter plots of mean coefficients per word to figures beside it.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import mean

import numpy as np
from explained import load, mean_and_error, named_folder, orient, sample, words_of
from measure import write_table
from scipy.stats import kendalltau
from tqdm import tqdm

from hf_bidir.explain import METHODS, token_scores, word_scatter

RESULTS = Path(__file__).parent / "results"
POSITIVE = 1
METHODS_OF_TEXTS = [name for name, method in METHODS.items() if not method.of_patches]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds sst_trees/{train,test}.parquet")
    parser.add_argument("--models", type=named_folder, nargs="+", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--sentences", type=int, default=200, help="of the test split")
    parser.add_argument("--methods", nargs="+", choices=METHODS_OF_TEXTS, default=METHODS_OF_TEXTS, metavar="METHOD")
    parser.add_argument("--results", type=Path, default=RESULTS / "human_sentiment.md")
    options = parser.parse_args()
    sentences = sample(options.data_dir / "sst_trees/test.parquet", options.sentences)
    train = [row["text"] for row in sample(options.data_dir / "sst_trees/train.parquet", 256)]
    rows, positive_share = [], None
    for name, folder in options.models:
        model, tokenizer = load(folder)
        orient(model, tokenizer, train, POSITIVE)
        scored = score_words(model, tokenizer, sentences, options.methods, name)
        positive_share = share_of_positive(scored)
        rows += [[name, method, *agreement([(labels, scores[method]) for _, labels, scores in scored])]
                 for method in options.methods]  # fmt: skip
        if "signed-attention" in options.methods:
            draw(scored, name, options.results.with_name(f"{options.results.stem}_{name}.png"))
    notes = (
        f"{len(sentences)} sentences of the test split, {positive_share:.0%} of their polar words positive, the score "
        "of an unsigned method in the first column. τ: Kendall's tau-b within a sentence, mean ± standard error over "
        "sentences with a polar word, of the signed score with the label, and of their magnitudes. "
        + " ".join(f"{name}: `{folder.name}`." for name, folder in options.models)
    )
    header = ["model", "method", "human sign, % of polar words", "τ, signed", "τ, magnitude"]
    write_table(options.results, "Explanations and human word sentiment", notes, header, rows, "cpu")


def score_words(model, tokenizer, sentences, methods, name) -> list[tuple]:
    """Words, labels -2 to 2 and scores by method of every sentence that is not truncated."""
    scored = []
    for row in tqdm(sentences, desc=name, unit="sentence"):
        example = words_of(tokenizer, row["tokens"], model.config.max_position_embeddings)
        labels = np.array(row["token_labels"]) - 2
        if example is None or example.truncated or not labels.any():
            continue
        words = ~np.array(example.special)
        scores = {
            method: example.by_token(token_scores(model, example.inputs, method, POSITIVE)[0], METHODS[method].additive)
            .numpy()[words]
            for method in methods
        }  # fmt: skip
        scored.append((row["tokens"], labels, scores))
    return scored


def agreement(scored: list[tuple[np.ndarray, np.ndarray]]) -> list[str]:
    """Percent of polar words with the sign of the label, and both taus."""
    labels, scores = (np.concatenate(part) for part in zip(*scored, strict=True))
    polar = labels != 0
    same = 100 * np.mean(np.sign(scores[polar]) == np.sign(labels[polar]))
    return [f"{same:.1f}", taus(scored), taus([(abs(label), abs(score)) for label, score in scored])]


def taus(scored: list[tuple[np.ndarray, np.ndarray]]) -> str:
    values = [kendalltau(labels, scores).statistic for labels, scores in scored]
    return mean_and_error([value for value in values if not np.isnan(value)])


def share_of_positive(scored: list[tuple]) -> float:
    labels = np.concatenate([labels for _, labels, _ in scored])
    return np.mean(labels[labels != 0] > 0)


def draw(scored: list[tuple], name: str, path: Path) -> None:
    """The paper's figure: the mean oriented coefficient of every word, by its human label."""
    found = defaultdict(list)
    for words, labels, scores in scored:
        for word, label, score in zip(words, labels, scores["signed-attention"], strict=True):
            found[word.lower(), int(np.sign(label))].append(score)
    words, polarity = zip(*found, strict=True)
    means, counts = [mean(values) for values in found.values()], [len(values) for values in found.values()]
    caption = f"{name}: mean over occurrences of the first token's coefficients in the last layer, mean over heads"
    word_scatter(words, means, polarity, counts, caption=caption, path=path)


if __name__ == "__main__":
    main()
