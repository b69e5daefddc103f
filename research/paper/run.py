"""Run the experiments of the TanhMax paper: softmax, TanhMax, three values of λ in between, tanh and mean pooling.

    python -m research.paper texts --data-dir DIR     # a group, or experiments by name; hours on a CPU
    python -m research.paper synthetic --seeds 1

All variants have the same architecture, grid of learning rates and selection on validation data; deep models have
softmax and TanhMax only. The learning rate is selected by the mean validation accuracy of the first three seeds, and a
grid whose best rate is at an end is extended, at most twice. Models with the selected rate are measured. A trained
model becomes a row of results/cells.csv, and one that has a row is not trained again; interrupted ones continue in
runs/paper. Then `make tables` makes the tables; figures of the first seeds go to results/.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.measure import ROOT
from benchmarks.runs import read_runs, where
from hf_bidir.common.errors import InputError
from hf_bidir.explain import load_checkpoint
from hf_bidir.finetune.data.sources import read_table
from research.paper.data import data_files
from research.paper.deep_training import trainer_of
from research.paper.experiments import GROUPS, NAMES, VARIANTS, Experiment, read_experiments
from research.paper.figures import draw
from research.paper.measures import measure, measure_deep
from research.runs import command_line, read_record, run_grid, train

FILE = Path(__file__).with_name("results") / "cells.csv"
KEY = ("data", "variant", "rate", "seed")
RATE_SEEDS, EXTENSIONS = 3, 2
GRADED_BY_PEOPLE = {"sst": "sst_trees/test.parquet"}  # experiment -> file with human grades of words in its test texts


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.prog = "python -m research.paper"
    choices = [*GROUPS, *NAMES]
    parser.add_argument("experiments", nargs="+", choices=choices, metavar="EXPERIMENT", help=", ".join(choices))
    parser.add_argument("--data-dir", type=Path, help="one sub-folder per data set, see README.md; by default the Hub")
    parser.add_argument("--seeds", type=int, default=5, help="the first three select the learning rate")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/paper", help="where the runs go")
    options = parser.parse_args(argv)
    for experiment in read_experiments(options.experiments):
        cells = Cells(experiment, options.data_dir, options.runs)
        run_grid(FILE, cells.trials(options.seeds), cells.run, KEY)
        runs = {variant: cells.folder(variant, cells.best_rate(variant), 0) for variant in experiment.variants}
        draw(experiment, runs, cells.files, cells.graded, FILE.parent)


class Cells:
    """The models of an experiment, each of which is a row."""

    def __init__(self, experiment: Experiment, data_dir: Path | None, runs: Path):
        self.experiment, self.runs = experiment, runs / experiment.name
        self.files = data_files(experiment, data_dir, self.runs / "data")
        graded = data_dir and data_dir / GRADED_BY_PEOPLE.get(experiment.name, "")
        self.graded = graded if graded and graded.is_file() else None

    def trials(self, seeds: int) -> Iterator[dict[str, Any]]:
        """All learning rates with the first seeds, then the selected one with all; the latter are measured."""
        data = {"data": self.experiment.name}
        for variant in self.experiment.variants:
            rates: list[float] | None = list(self.experiment.learning_rates)
            for _ in range(1 + EXTENSIONS):
                for rate, seed in product(rates, range(min(seeds, RATE_SEEDS))):
                    yield data | {"variant": variant, "rate": rate, "seed": seed}
                further = beyond(rates, self.best_rate(variant))
                if further is None:
                    break
                rates.append(further)
            for seed in range(seeds):
                rate = self.best_rate(variant)
                yield data | {"variant": variant, "rate": rate, "seed": seed, "chosen": True}

    def best_rate(self, variant: str) -> float:
        return best_rate(where(read_runs(FILE), data=self.experiment.name, variant=variant))

    def folder(self, variant: str, rate: float, seed: int) -> Path:
        """The output folder of a run."""
        return self.runs / variant / f"lr{rate:g}-seed{seed}"

    def run(
        self, data: str, variant: str, rate: float, seed: int, chosen: bool = False
    ) -> tuple[dict[str, Any], list[Path]]:
        """The sizes and scores of a model, which is trained unless it is finished, and its measures if it is chosen.

        A training that fails, as its loss becomes NaN, has no scores.
        """
        folder = self.folder(variant, rate, seed)
        settings = self.experiment.recipe | VARIANTS[variant] | {"learning_rate": rate, "seed": seed}
        settings |= {f"{split}_file": file for split, file in self.files.items()}
        row: dict[str, Any] = {"chosen": chosen}
        try:
            results = train(self.experiment.kind, settings, folder, trainer_of(settings))
        except InputError as error:
            print(f"failed: {folder}: {error}")
            return row, list(self.files.values())
        row |= {f"rows_{split}": part["rows"] for split, part in read_record(folder)["data"].items()}
        recalls = [value for name, value in results.items() if name.startswith("test_recall_")]
        row |= {name: results[name] for name in ("eval_accuracy", "test_accuracy")} | {"worst_recall": min(recalls)}
        return row | (self.measures(folder) if chosen else {}), list(self.files.values())

    def measures(self, folder: Path) -> dict[str, float]:
        model, processor = load_checkpoint(folder)
        model.requires_grad_(False)
        splits = {split: read_table(str(file)) for split, file in self.files.items()}
        if self.experiment.deep:
            return measure_deep(model, processor, splits["test"], self.experiment.recipe.get("max_length"))
        people = read_table(str(self.graded)) if self.graded else None
        return measure(model, processor, splits, people, polar=self.experiment.synthetic is not None)


def best_rate(runs: pd.DataFrame) -> float:
    """The learning rate with the highest mean validation accuracy over the first seeds; the middle one of several.

    The loss is no criterion: if all predictions are correct it decreases with the norm of the weights, so the largest
    rate would win, at which other seeds fail. Failed runs count as 0.
    """
    first = runs[runs["seed"] < RATE_SEEDS].fillna({"eval_accuracy": 0})
    means = first.groupby("rate")["eval_accuracy"].mean()
    best = sorted(means.index[means == means.max()])
    return float(best[(len(best) - 1) // 2])


def beyond(rates: list[float], best: float) -> float | None:
    """The next learning rate beyond the end of the grid at which the best one lies; None if it lies inside."""
    ordered = sorted(rates)
    if len(ordered) < 2 or best not in (ordered[0], ordered[-1]):
        return None
    neighbour = ordered[1] if best == ordered[0] else ordered[-2]
    return float(f"{best * best / neighbour:.2g}")
