"""The test scores of every attention mechanism, with TanhMax and softmax, and figures of its coefficients.

    python -m research.mechanisms.run
    python -m research.mechanisms.run --only dates sorting-20 --seeds 1
    python -m research.mechanisms.run --fashion-mnist DIR

Encoder-decoders convert dates (training/recipes/dates-rnn-*.yaml with another mechanism) and sort numbers
(sorting-rnn-*.yaml); in sorting-N and dates-N they do so in sources of N words, with attention and without.
Classifiers use the small synthetic texts, the digits of scikit-learn, and the files of Fashion-MNIST in DIR. A trained
model becomes a row of results/mechanisms.csv, and one that has a row is not trained again; interrupted ones continue in
runs/mechanisms, so several processes may share the work. Figures of the first seed go to pictures/. `make tables`
makes the tables.
"""

import argparse
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from benchmarks.runs import PAIR, read_runs
from research.mechanisms.data import LENGTHS, PAIRS, SIDES, image_splits
from research.mechanisms.figures import draw_coefficients, draw_lengths, draw_pixels
from research.mechanisms.recurrent import SETTINGS
from research.runs import ROOT, command_line, read_record, recipe, run_grid, train
from research.synthetic import SETS, write_splits

FILE = Path(__file__).with_name("results") / "mechanisms.csv"
RECIPES = Path(__file__).with_name("recipes") / "mechanisms.yaml"
KEY = ("task", "mechanism", "activation", "seed")
NO_ATTENTION = "no attention"
LONGER = {f"{data}-{length}": length for data in ("sorting", "dates") for length in LENGTHS}


def _mechanisms() -> dict[str, dict[str, dict[str, Any]]]:
    """The changed options by task and mechanism."""
    tasks = yaml.safe_load(RECIPES.read_text(encoding="utf-8"))
    longer = tasks.pop("longer")
    return tasks | dict.fromkeys(LONGER, longer) | {"fashion-mnist": tasks["digits"]}


MECHANISMS = _mechanisms()


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", choices=MECHANISMS, metavar="TASK", help=", ".join(MECHANISMS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, counted from 0")
    parser.add_argument("--fashion-mnist", type=Path, help="with its parquet files; without it, not on these")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/mechanisms", help="where the runs go")
    parser.add_argument("--pictures", type=Path, default=FILE.parents[1] / "pictures", help="where the pictures go")
    options = parser.parse_args()
    tasks = options.only or [task for task in MECHANISMS if task != "fashion-mnist" or options.fashion_mnist]
    if "fashion-mnist" in tasks and not options.fashion_mnist:
        parser.error("fashion-mnist needs its files; pass their folder as --fashion-mnist")
    options.pictures.mkdir(parents=True, exist_ok=True)
    run_grid(FILE, trials(tasks, options.seeds), partial(trained, options), KEY)
    for task in set(tasks) & set(SIDES):
        draw_pixels(task, [*MECHANISMS[task]], options.runs, options.pictures / f"{task}.png")
    runs = read_runs(FILE)
    if not runs.empty and set(LONGER) <= set(runs["task"]):
        draw_lengths(runs, LONGER, options.pictures / "lengths.png")


def trials(tasks: list[str], seeds: int) -> list[dict[str, Any]]:
    """The models to train, as the values of `KEY`; one without attention has no activation."""
    return [
        dict(zip(KEY, (task, mechanism, activation, seed), strict=True))
        for seed, task in product(range(seeds), tasks)
        for mechanism in MECHANISMS[task]
        for activation in (("none",) if mechanism == NO_ATTENTION else PAIR)
    ]


def trained(
    options: argparse.Namespace, task: str, mechanism: str, activation: str, seed: int
) -> tuple[dict[str, Any], list[Path]]:
    """Train one model unless it is trained, and draw the coefficients of the first TanhMax model."""
    folder = options.runs / task / f"{file_name(mechanism)}-{activation}-{seed}"
    made = PAIRS | {"texts": SETS["small"]}
    splits = made[task].split() if task in made else image_splits(task, options.fashion_mnist)
    files = write_splits(splits, options.runs / "data" / task)
    kind, settings = settings_of(task, mechanism, "softmax" if activation == "none" else activation)
    settings |= MECHANISMS[task][mechanism] | {f"{split}_file": file for split, file in files.items()}
    results, record = train(kind, settings | {"seed": seed}, folder), read_record(folder)
    if task in ("dates", "sorting", "texts") and activation == "tanhmax" and seed == 0:
        name = "sorting" if task == "sorting" else mechanism
        draw_coefficients(name, folder, options.pictures / f"{file_name(name)}.png")
    score = results.get("test_exact_match", results.get("test_accuracy"))
    row = {"score": score, "epochs": results["epoch"], "seconds": record["duration_seconds"]}
    return row | {f"rows_{split}": part["rows"] for split, part in record["data"].items()}, list(files.values())


def file_name(name: str) -> str:
    return name.replace("_", "-").replace(" ", "-")


def settings_of(task: str, mechanism: str, activation: str) -> tuple[str, dict[str, Any]]:
    """The training script of a task, and its options before those of the mechanism."""
    if task in PAIRS:
        settings = recipe(f"{task.split('-')[0]}-rnn-{activation}")
        if task in LONGER:
            settings |= {"unit": "word", "max_length": LONGER[task] + 1, "max_target_length": 8, "num_train_epochs": 8}
        return "seq2seq", settings
    if task == "texts":
        window = mechanism == "window"
        return "bert" if window else "recurrent", ({} if window else SETTINGS) | {"attn_activation": activation}
    return "recurrent", {
        **{"encoder": "gru", "bidirectional": True, "attn_score": "general", "embedding_size": 16, "hidden_size": 32},
        **{"learning_rate": 5e-3, "num_train_epochs": 30 if task == "digits" else 6, "dropout": 0.1},
        **{"lr_scheduler_type": "cosine", "max_length": SIDES[task] ** 2, "attn_activation": activation},
    }


if __name__ == "__main__":
    main()
