"""Do signed explanations agree with human word sentiment? Stanford Sentiment Treebank, MiniLM fine-tuned on SST-2.

    python benchmarks/explained_models.py --data-dir DIR --model MINILM --tasks sst2
    python benchmarks/human_sentiment.py --data-dir DIR

DIR holds sst2/train.parquet and sst_trees/test.parquet. Every method scores each word for the class "positive"; people
labelled the words out of context from very negative (-2) to very positive (2). Heads are oriented by training
sentences. Rows go to benchmarks/results/human_sentiment.csv, one for each model, seed and method: the share of polar
words whose score has the sign of the label, and Kendall's tau-b within a sentence of score and label, and of their
magnitudes. A row that is there is not measured again.
"""

import argparse
from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
from explained import MODELS, SEEDS, TASKS, add_options, load, models, orient, sample, words_of
from measure import RESULTS, save_runs
from scipy.stats import kendalltau
from tqdm import tqdm

from hf_bidir.common.runs import PAIR, check_runs, comparisons, has_run, markdown, where
from hf_bidir.common.statistics import TESTED, Comparison, compare, holm, mean_in_interval
from hf_bidir.explain import METHODS, token_scores
from hf_bidir.paper.polarity import NEUTRAL_GRADE

METHODS_OF_TEXTS = [name for name, method in METHODS.items() if not method.of_patches]
NAME, KEY = "human_sentiment", ("model", "seed", "method")
METRICS = {"human_sign": 100, "tau": 1, "tau_of_magnitudes": 1}
POSITIVE = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--sentences", type=int, default=200, help="of the test split")
    parser.add_argument("--methods", nargs="+", choices=METHODS_OF_TEXTS, default=METHODS_OF_TEXTS, metavar="METHOD")
    options = parser.parse_args()
    file = options.data_dir / "sst_trees/test.parquet"
    sentences = sample(file, options.sentences)
    train = [row["text"] for row in sample(TASKS["sst2"].file(options.data_dir, "train"), 256)]
    for name, seed, folder in models(options, "sst2"):
        key = {"model": name, "seed": seed}
        if has_run(RESULTS / f"{NAME}.csv", **key):
            continue
        model, tokenizer = load(folder)
        orient(model, tokenizer, train, POSITIVE)
        scored = score_words(model, tokenizer, sentences, options.methods, f"{name}, seed {seed}")
        always = agreement([(labels, np.ones(len(labels))) for _, labels, _ in scored])["human_sign"]
        rows = [
            key | {"method": method, **agreement([(labels, scores[method]) for _, labels, scores in scored])}
            | {"always_positive": always}
            for method in options.methods
        ]  # fmt: skip
        save_runs(NAME, KEY, rows, file)


def score_words(model, tokenizer, sentences, methods, name) -> list[tuple]:
    """Words, labels -2 to 2 and scores by method of every sentence that has a polar word and is not truncated."""
    scored = []
    for row in tqdm(sentences, desc=name, unit="sentence"):
        example = words_of(tokenizer, row["tokens"], model.config.max_position_embeddings)
        labels = np.array(row["token_labels"]) - NEUTRAL_GRADE
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


def agreement(scored: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float | None]:
    """The share of polar words with the sign of the label, both mean taus, and the number of sentences.

    The share is of all words together, while the report of `hf-bidir paper` averages shares over sentences.
    """
    labels, scores = (np.concatenate(part) for part in zip(*scored, strict=True))
    polar = labels != 0
    return {
        "human_sign": float(np.mean(np.sign(scores[polar]) == np.sign(labels[polar]))),
        "tau": mean_tau(scored),
        "tau_of_magnitudes": mean_tau([(abs(label), abs(score)) for label, score in scored]),
        "sentences": len(scored),
    }


def mean_tau(scored: list[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """The mean over sentences in which both vary; None if there are none."""
    taus = np.array([kendalltau(labels, scores).statistic for labels, scores in scored])
    return None if np.isnan(taus).all() else float(np.nanmean(taus))


def against_constant(runs: pd.DataFrame, methods: Sequence[str]) -> dict[str, Comparison]:
    """The human sign of methods minus that of calling every word positive, in points; corrected together."""
    tests = {}
    for method, name in product(methods, MODELS):
        found = where(runs, model=name, method=method)
        pair = [list(100 * found[column]) for column in ("human_sign", "always_positive")]
        tests[f"{method} with {MODELS[name]}"] = compare(*pair, paired=True)
    return holm(tests)


def signs(runs: pd.DataFrame) -> str:
    """The human sign of signed methods alone."""
    check_runs(runs, ("model", "method"), SEEDS)
    rows = [
        [method, *(mean_in_interval(100 * where(runs, model=name, method=method)["human_sign"], 1) for name in MODELS)]
        for method in METHODS_OF_TEXTS
        if METHODS[method].signed
    ]
    return markdown(["method", *MODELS.values()], rows)


def differences(runs: pd.DataFrame) -> str:
    """TanhMax minus softmax, taus times 100."""
    check_runs(runs, ("model", "method"), SEEDS)
    tests = comparisons(runs, ("method",), "model", PAIR, {"human_sign": 100, "tau": 100})
    rows = [[method, column.replace("_", " "), *one.cells()] for (method, column), one in tests.items()]
    return markdown(["method", "measure", *TESTED], rows)


def table(runs: pd.DataFrame) -> str:
    """Means of all methods."""
    check_runs(runs, ("model", "method"), SEEDS)
    rows = []
    for method in METHODS_OF_TEXTS:
        for name in MODELS:
            found = where(runs, model=name, method=method)
            cells = [
                mean_in_interval(scale * found[column], 1 if scale > 1 else 3) for column, scale in METRICS.items()
            ]
            rows.append([method, MODELS[name], *cells])
    return markdown(["method", "model", "human sign, %", "τ, signed", "τ, magnitude"], rows)


if __name__ == "__main__":
    main()
