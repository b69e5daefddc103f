"""Do the scores of words say what happens without them? Methods x models, on drawn and on negated sentences.

    python -m research.conversions.run sst2 --data-dir DIR --model MINILM --only softmax encoder --seeds 2
    python -m research.explanations.words --data-dir DIR --seeds 2

Every method explains the predicted class instead of the other one, on 150 test sentences of SST-2 and on 80 with a
negation; y is the difference of their logits. Rows go to results/words.csv, one for each model, seed, method, set and
half of the sentences: one half chooses the default method ("choice"), the other reports it ("report").

    opposite   share of the sentences whose scores, without those of special tokens, sum to another sign than y
    falls      y minus y without the word of the largest score, mean
    rises      y without the word of the smallest score, minus y, mean
    holds      share of the sentences whose verdict is "holds"
    partly     share of those whose verdict is "partly"
    removal    share of those that pass the first check, the prediction without the strongest words
    correlation    what the second check compares with its threshold, 95 % quantile
    seconds    median time of a sentence, one thread

"shuffled" is a control, the scores of erasure shuffled among the words: all but 5 % of them miss the quantile of the
correlation, and of the first check the threshold is where most of erasure's scores pass and few of the shuffled ones.

`falls_error` and `rises_error` are standard errors over sentences. The word is removed from the text, as by the method
deletion, which therefore has the largest falls and rises that a single word can have.
"""

import random
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from benchmarks.runs import markdown, where
from hf_bidir.common.files import sha256
from hf_bidir.explain import ForwardCache, Request, explain
from hf_bidir.explain.verdict import EXPLAINS, verdict_of
from hf_bidir.finetune.data.sources import read_table
from research.explanations.tasks import MODELS, TASKS, add_options, load, models
from research.runs import command_line, grid, run_grid

FILE = Path(__file__).with_name("results") / "words.csv"
KEY = ("model", "seed", "method", "sentences", "half")
NEGATION = re.compile(r"\b(not|no|never|nothing|nor|neither|without|hardly)\b|n't\b", re.IGNORECASE)
SETS = {"drawn": (150, ""), "negated": (80, NEGATION)}  # how many of those that a pattern finds
HALVES = ("choice", "report")
REMOVED = "deletion"
SHUFFLED = "shuffled"
JUDGED = ("erasure", SHUFFLED)  # a verdict on another method repeats erasure
METHODS = ("erasure", REMOVED, "contributions", "chefer", "attnlrp")
MEANS = {"opposite": ("opposite, %", 100, 0), "falls": ("falls", 1, 2), "rises": ("rises", 1, 2)}
HEADLINES = {"holds": ("holds, %", 100, 0), "partly": ("partly, %", 100, 0)}
CHECKS = HEADLINES | {"removal": ("first check, %", 100, 0)}


def main() -> None:
    parser = command_line(__doc__)
    add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders, trials = {}, []
    for name, seed, folder in models(options, "sst2"):
        folders[name, seed] = folder
        trials.append({"model": name, "seed": seed, "weights": sha256(folder / "model.safetensors")[:8]})
    file = TASKS["sst2"].file(options.data_dir, "test")
    texts = {name: sentences(file, *described) for name, described in SETS.items()}

    def measured(model: str, seed: int, weights: str) -> tuple[list[dict[str, Any]], list[Path]]:
        rows, loaded = [], load(folders[model, seed])
        for name, half in product(SETS, HALVES):
            drawn = texts[name][HALVES.index(half) :: 2]
            removals = [removed(*loaded, text) for text in tqdm(drawn, desc=f"{model} {seed}, {name}")]
            for method in (*METHODS, SHUFFLED):
                of_method = pd.DataFrame([of_text[method] for of_text in removals])
                measures = summary(of_method, MEANS | (CHECKS if method in JUDGED else {}))
                limits = of_method.filter(["correlation"]).quantile(0.95).to_dict()
                rows.append({"method": method, "sentences": name, "half": half} | measures | limits)
        return rows, [file]

    run_grid(FILE, trials, measured, KEY)


def sentences(file: Path, count: int, pattern: str | re.Pattern) -> list[str]:
    """As many sentences that hold the pattern, drawn with a fixed seed."""
    matching = [row["text"] for row in read_table(str(file)) if re.search(pattern, row["text"])]
    return random.Random(0).sample(matching, count)


def removed(model: Any, tokenizer: Any, text: str) -> dict[str, dict[str, float]]:
    """What the scores of each method say of a sentence."""
    with torch.no_grad():
        predicted = int(model(**tokenizer(text, return_tensors="pt")).logits.argmax())
    found, removals = {}, {}
    for method in METHODS:
        start = time.perf_counter()
        explanation = explain(model, tokenizer, text, method, target=predicted, instead_of=1 - predicted, verdict=False)
        found[method] = explanation, time.perf_counter() - start
    erased, seconds = found["erasure"]
    words, scores = erased.example.words, erased.scores.clone()
    scores[words] = scores[random.Random(text).sample(words, len(words))]
    found[SHUFFLED] = replace(erased, scores=scores), seconds
    cache = ForwardCache(model, erased.example.inputs, erased.example.token_of_piece[None])
    falls = found[REMOVED][0].scores[words]
    for name, (explanation, seconds) in found.items():
        row = explanation.scores[words]
        removals[name] = {
            "opposite": bool(row.sum() < 0),
            "falls": falls[row.argmax()].item(),
            "rises": -falls[row.argmin()].item(),
            "seconds": seconds,
        }
    for name in JUDGED:
        verdict = verdict_of(cache, Request("erasure", predicted, 1 - predicted), tokenizer, found[name][0])
        removals[name] |= {headline: verdict.headline == headline for headline in HEADLINES}
        removals[name] |= {"removal": verdict.share >= EXPLAINS, "correlation": verdict.correlation}
    return removals


def summary(measures: Iterable[Any], means: Mapping[str, Any]) -> dict[str, float]:
    """Means over examples, their standard errors, and the median time."""
    table = pd.DataFrame(measures)
    averages = {name: float(table[name].mean()) for name in means}
    errors = {f"{name}_error": float(table[name].sem()) for name in means}
    return averages | errors | {"seconds": statistics.median(table["seconds"])}


def table(
    runs: pd.DataFrame, half: str = "report", methods: Sequence[str] = METHODS, means: Mapping[str, Any] = MEANS
) -> str:
    """A row for each model, set and method."""
    return by_settings(where(runs, half=half), grid(model=MODELS, sentences=SETS, method=methods), means)


def verdicts(runs: pd.DataFrame, half: str = "report") -> str:
    """The shares of headlines and of the first check: erasure, and its scores shuffled among the words."""
    return table(runs, half, JUDGED, CHECKS)


def by_settings(runs: pd.DataFrame, settings: list[dict[str, Any]], means: Mapping[str, tuple[str, float, int]]) -> str:
    """A row for each of the settings that has runs: means over seeds, with an interval over examples and seeds.

    Args:
        means: by measure its title, factor and digits.
    """
    rows = []
    for setting in settings:
        seeds = where(runs, **setting)
        if not seeds.empty:
            names = [MODELS.get(value, value) for value in setting.values()]
            cells = [cell(seeds, measure, *form) for measure, (_, *form) in means.items()]
            rows.append([*names, *cells, f"{seeds['seconds'].median():.2f}"])
    return markdown([*settings[0], *(title for title, *_ in means.values()), "seconds"], rows)


def cell(seeds: pd.DataFrame, measure: str, scale: float, digits: int) -> str:
    """The mean with its 95 % interval: the error over examples, which all seeds share, and that over seeds."""
    of_seeds = seeds[measure].var() / len(seeds) if len(seeds) > 1 else 0
    error = 1.96 * np.sqrt((seeds[f"{measure}_error"] ** 2).mean() + of_seeds)
    return f"{scale * seeds[measure].mean():.{digits}f} ± {scale * error:.{digits}f}"


if __name__ == "__main__":
    main()
