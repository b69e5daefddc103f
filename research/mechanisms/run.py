"""The test scores of every attention mechanism, with TanhMax and softmax, and figures of its coefficients.

    python -m research.mechanisms.run
    python -m research.mechanisms.run --only dates sorting-20 --seeds 1
    python -m research.mechanisms.run --fashion-mnist DIR

Encoder-decoders convert dates (training/recipes/dates-rnn-*.yaml with another mechanism) and sort numbers
(sorting-rnn-*.yaml); in sorting-N and dates-N they do so in sources of N words, with attention and without.
Classifiers use the small synthetic texts, the digits of scikit-learn, and the files of Fashion-MNIST in DIR. A trained
model becomes a row of results/mechanisms.csv, and one that has a row is not trained again; interrupted ones continue in
runs/mechanisms, so several processes may share the work. Figures of the first seed go to docs/mechanisms. `make tables`
makes the tables.
"""

import argparse
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import measure
from benchmarks.runs import PAIR, has_run, read_runs
from hf_bidir.cli.script import read_recipe
from hf_bidir.cli.text_demo import SETTINGS
from hf_bidir.finetune.data.synthetic import SETS, write_splits
from hf_bidir.finetune.record import read_record
from research.mechanisms.figures import draw_coefficients, draw_lengths, draw_pixels
from research.mechanisms.images import IMAGES, SIDES, image_splits
from research.mechanisms.pairs import LENGTHS, PAIRS
from training import recurrent_classification, seq2seq, text_classification

FILE = Path(__file__).with_name("results") / "mechanisms.csv"
KEY = ("task", "mechanism", "activation", "seed")
NO_ATTENTION = "no attention"
DATES = {
    "content": {"attn_score": "content"},
    "additive": {"attn_score": "additive"},
    "location": {"attn_score": "location"},
    "general": {},
    "dot": {"attn_score": "dot"},
    "scaled_dot": {"attn_score": "scaled_dot"},
    "bahdanau": {"attn_score": "additive", "decoder_style": "bahdanau"},
    "local-m": {"attn_scope": "local-m", "attn_window": 3},
    "local-p": {"attn_scope": "local-p", "attn_window": 3},
    "hard": {"attn_selection": "hard"},
}
TEXTS = {
    "per_token": {},
    "feed_forward": {"attn_score": "feed_forward", "encoder": "lstm", "bidirectional": True},
    "positional_feed_forward": {"attn_score": "positional_feed_forward", "encoder": "lstm", "bidirectional": True},
    "learned query": {"attn_score": "additive", "encoder": "gru", "bidirectional": True},
    "hard per_token": {"attn_selection": "hard"},
    "window": {  # of a BERT; three such layers reach from the first word of a text to the last
        **{"attn_scope": "window", "attn_window": 4, "hidden_size": 32, "num_hidden_layers": 3},
        **{"num_attention_heads": 1, "intermediate_size": 64, "max_length": 14, "num_train_epochs": 5},
        **{"learning_rate": 3e-3, "vocab_size": 4000},
    },
}
LONGER = {f"{data}-{length}": length for data in ("sorting", "dates") for length in LENGTHS}
MECHANISMS: dict[str, dict[str, dict[str, Any]]] = {
    "dates": DATES,
    "sorting": {"general": {}},
    **{task: {"general": {}, NO_ATTENTION: {"attn_scope": "none"}} for task in LONGER},
    "texts": TEXTS,
    **dict.fromkeys(("digits", "fashion-mnist"), IMAGES),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MECHANISMS, metavar="TASK", help=", ".join(MECHANISMS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, counted from 0")
    parser.add_argument("--fashion-mnist", type=Path, help="the folder with its IDX files; without it, not on these")
    parser.add_argument("--runs", type=Path, default=measure.ROOT / "runs/mechanisms", help="where the runs go")
    parser.add_argument("--pictures", type=Path, default=measure.ROOT / "docs/mechanisms", help="where the pictures go")
    options = parser.parse_args()
    tasks = options.only or [task for task in MECHANISMS if task != "fashion-mnist" or options.fashion_mnist]
    if "fashion-mnist" in tasks and not options.fashion_mnist:
        parser.error("fashion-mnist needs its files; pass their folder as --fashion-mnist")
    options.pictures.mkdir(parents=True, exist_ok=True)
    for trial in tqdm(trials(tasks, options.seeds), unit="model"):
        if not has_run(FILE, **trial):
            run_trial(trial, options)
    for task in set(tasks) & {"digits", "fashion-mnist"}:
        draw_pixels(task, options.runs, options.pictures / f"{task}.png")
    runs = read_runs(FILE)
    if not runs.empty and set(LONGER) <= set(runs["task"]):
        draw_lengths(runs, LONGER, options.pictures / "lengths.png")


def trials(tasks: list[str], seeds: int) -> list[dict[str, Any]]:
    """The models to train, as the values of `KEY`; one without attention has no activation."""
    return [
        {"task": task, "mechanism": mechanism, "activation": activation, "seed": seed}
        for seed, task in product(range(seeds), tasks)
        for mechanism in MECHANISMS[task]
        for activation in (("none",) if mechanism == NO_ATTENTION else PAIR)
    ]


def run_trial(trial: dict[str, Any], options: argparse.Namespace) -> None:
    """Train one model unless it is trained, save its row, and draw the coefficients of the first TanhMax model."""
    task, mechanism, folder = trial["task"], trial["mechanism"], folder_of(options.runs, **trial)
    made = PAIRS | {"texts": SETS["small"]}
    splits = made[task].split() if task in made else image_splits(task, options.fashion_mnist)
    files = write_splits(splits, options.runs / "data" / task)
    train, settings = recipe(task, mechanism, "softmax" if trial["activation"] == "none" else trial["activation"])
    settings |= MECHANISMS[task][mechanism] | {f"{split}_file": file for split, file in files.items()}
    results = measure.train_once(train, settings | {"seed": trial["seed"]}, folder)
    score = results.get("test_exact_match", results.get("test_accuracy"))
    row = {"score": score, "epochs": results["epoch"], "seconds": read_record(folder)["duration_seconds"]}
    sizes = {f"rows_{split}": part["rows"] for split, part in read_record(folder)["data"].items()}
    measure.save_run(FILE, KEY, trial | row | sizes, *files.values())
    if task in ("dates", "sorting", "texts") and trial["activation"] == "tanhmax" and trial["seed"] == 0:
        name = "sorting" if task == "sorting" else mechanism
        draw_coefficients(name, folder, options.pictures / f"{file_name(name)}.png")


def folder_of(runs: Path, task: str, mechanism: str, activation: str, seed: int) -> Path:
    return runs / task / f"{file_name(mechanism)}-{activation}-{seed}"


def file_name(name: str) -> str:
    return name.replace("_", "-").replace(" ", "-")


def recipe(task: str, mechanism: str, activation: str) -> tuple[Callable[..., object], dict[str, Any]]:
    """The training function of a task, and its options before those of the mechanism."""
    if task in PAIRS:
        settings = read_recipe(measure.ROOT / f"training/recipes/{task.split('-')[0]}-rnn-{activation}.yaml")
        if task in LONGER:
            settings |= {"unit": "word", "max_length": LONGER[task] + 1, "max_target_length": 8, "num_train_epochs": 8}
        return seq2seq.main, settings
    if task == "texts":
        train = text_classification.main if mechanism == "window" else recurrent_classification.main
        return train, ({} if mechanism == "window" else SETTINGS) | {"attn_activation": activation}
    images = {
        **{"encoder": "gru", "bidirectional": True, "attn_score": "general", "embedding_size": 16, "hidden_size": 32},
        **{"learning_rate": 5e-3, "num_train_epochs": 30 if task == "digits" else 6, "dropout": 0.1},
        **{"lr_scheduler_type": "cosine", "max_length": SIDES[task] ** 2, "attn_activation": activation},
    }
    return recurrent_classification.main, images


if __name__ == "__main__":
    main()
