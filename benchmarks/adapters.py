"""How close does a LoRA adapter come to full fine-tuning of the same signed checkpoint?

The recipes digits-lora and ag-news-lora, the latter on a sample of the training data, beside the same recipes without
an adapter. Of three learning rates, the best by validation accuracy with the first seed is taken for the other seeds;
the test data is read once per run and chooses nothing.

    python benchmarks/adapters.py --ag-news ag_news/ --runs runs/adapters

A run becomes a row of results/adapters.csv, and one that has a row is not repeated. `make tables` makes the table.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from pandas import DataFrame

from benchmarks.measure import RESULTS, ROOT, command_line, recipe, run_grid, train_once
from benchmarks.runs import comparison, markdown, read_runs, spread, where
from hf_bidir.common.files import read_json
from hf_bidir.finetune.record import RECORD
from training import image_classification, text_classification

TASKS = {"digits": image_classification.main, "ag-news": text_classification.main}
RATES = {
    ("digits", "adapter"): (1e-3, 3e-3, 1e-2),
    ("digits", "all weights"): (3e-4, 1e-3, 3e-3),
    ("ag-news", "adapter"): (3e-4, 1e-3, 3e-3),
    ("ag-news", "all weights"): (3e-5, 1e-4, 3e-4),
}
NAMES = {"digits": "digits", "ag-news": "AG News"}
SAMPLE = 10_000  # training texts
FILE = RESULTS / "adapters.csv"
KEY = ["data", "trained", "rate", "seed"]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--ag-news", type=Path, required=True, help="folder with train.parquet and test.parquet")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, counted from 0")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    options = parser.parse_args()
    run_grid(FILE, pending(options.seeds), partial(measured, options), KEY)


def pending(seeds: int) -> Iterator[dict[str, Any]]:
    """The runs to do: all rates with the first seed, and the best one with the others."""
    # rates outside, so that runs of both kinds alternate
    for seed, place in product(range(seeds), range(3)):
        for (data, trained), rates in RATES.items():
            if seed == 0 or rates[place] == best_rate(read_runs(FILE), data, trained):
                yield {"data": data, "trained": trained, "rate": rates[place], "seed": seed}


def measured(
    options: argparse.Namespace, data: str, trained: str, rate: float, seed: int
) -> tuple[dict[str, Any], list[Path]]:
    """Train, and return the numbers of a row and the files of the data."""
    given = recipe(f"{data}-lora")
    given |= {"learning_rate": rate, "seed": seed, "model_name_or_path": str(ROOT / given["model_name_or_path"])}
    if data == "ag-news":
        given.pop("dataset_name")
        given |= {"train_file": str(options.ag_news / "train.parquet"), "max_train_samples": SAMPLE}
        given["test_file"] = str(options.ag_news / "test.parquet")
    if trained == "all weights":
        given.pop("lora_rank")
    folder = options.runs / f"{data}-{trained.replace(' ', '-')}-{rate:g}-{seed}"
    results = train_once(TASKS[data], given, folder)
    record = read_json(folder / RECORD)
    weights = next(folder.glob("*model.safetensors"))
    row = {
        "validation_accuracy": results["eval_accuracy"],
        "test_accuracy": results["test_accuracy"],
        "parameters": record.get("adapter", {}).get("parameters", record["num_parameters"]),
        "megabytes": weights.stat().st_size / 1e6,
    }
    files = [options.ag_news / f"{split}.parquet" for split in ("train", "test")] if data == "ag-news" else []
    return row, files


def best_rate(runs: DataFrame, data: str, trained: str) -> float:
    """The learning rate with the highest validation accuracy of seed 0."""
    first = where(runs, data=data, trained=trained, seed=0)
    return float(first.loc[first["validation_accuracy"].idxmax(), "rate"])


def table(runs: DataFrame) -> str:
    """One row for each data set and each kind of training, at its best learning rate; adapters minus all weights."""
    header = ["data", "trained", "weights trained", "file, MB", "learning rate", "seeds", "test accuracy, %"]
    best = {key: where(runs, data=key[0], trained=key[1], rate=best_rate(runs, *key)) for key in RATES}
    rows = []
    for (data, trained), of in best.items():
        first = of.iloc[0]
        row = [NAMES[data], trained, f"{first['parameters']:,}", f"{first['megabytes']:.1f}"]
        row += [_rate(first["rate"], RATES[data, trained]), str(len(of)), spread(of, "test_accuracy", 100, 2)]
        against = comparison(of, best[data, "all weights"], "test_accuracy", 100) if trained == "adapter" else None
        rows.append([*row, against.text() if against else ""])
    return markdown([*header, "difference, points"], rows)


def _rate(rate: float, tried: tuple[float, ...]) -> str:
    """A learning rate, with a note if it is the lowest or highest one that was tried."""
    return f"{rate:g}{' (highest tried)' if rate == max(tried) else ' (lowest tried)' if rate == min(tried) else ''}"


if __name__ == "__main__":
    main()
