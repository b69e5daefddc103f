"""Which learning rate suits a pretrained encoder, with softmax and with signed attention?

    python -m research.conversions.learning_rates --data-dir DATA --model MINILM

MiniLM and model_cards/minilm-tanhmax are fine-tuned on 1,000 texts of four tasks, their first 64 tokens, otherwise as
`run` fine-tunes them on SST-2, with every rate and seed 0; then with two more seeds at the rate of the best validation
accuracy. A run becomes a row of results/learning_rates.csv, one that has a row is not repeated, and its model is not
kept. `make tables` makes the tables.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pandas import DataFrame

from benchmarks.measure import KEEP_LAST
from benchmarks.runs import comparison, markdown, read_runs, spread, where
from research.conversions.run import ALL, TASKS
from research.paper.data import SPLITS
from research.runs import ROOT, RUNS, command_line, grid, recipe, run_grid, train

FILE = Path(__file__).with_name("results") / "learning_rates.csv"
RATES = (2e-5, 5e-5, 1.5e-4, 5e-4)
SEEDS = range(3)
SETS = ("sst2", "ag_news", "imdb", "20news")
TEXTS = 1000  # of training, as a user may have labelled
SETTINGS = {"num_train_epochs": 3, "eval_strategy": "epoch", "max_length": 64}
SOFTMAX, SIGNED = STARTS = ("MiniLM", "minilm-tanhmax")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds a folder for each data set")
    parser.add_argument("--model", required=True, help="the softmax MiniLM, a folder or a name on the Hub")
    parser.add_argument("--tasks", nargs="+", choices=SETS, default=SETS)
    options = parser.parse_args()
    run_grid(FILE, trials(options.tasks), partial(measured, options))


def trials(tasks: list[str]) -> Iterator[dict[str, Any]]:
    """Every rate with the first seed, then the best one with the others."""
    yield from grid(task=tasks, start=STARTS, rate=RATES, seed=SEEDS[:1])
    for pair in grid(task=tasks, start=STARTS):
        rate = best_rate(read_runs(FILE), **pair)
        yield from ({**pair, "rate": rate, "seed": seed} for seed in SEEDS[1:])


def best_rate(runs: DataFrame, task: str, start: str) -> float:
    """The rate of the best validation accuracy with the first seed."""
    first = where(runs, task=task, start=start, seed=SEEDS[0])
    return first.loc[first["validation_accuracy"].idxmax(), "rate"]


def measured(
    options: argparse.Namespace, task: str, start: str, rate: float, seed: int
) -> tuple[dict[str, Any], list[Path]]:
    """The accuracies of one fine-tuning, on validation and on test data."""
    data = TASKS[task]
    files = [data.split(name, options.data_dir, RUNS, TEXTS if name == "train" else ALL) for name in SPLITS]
    settings = recipe("sst2-minilm-full") | KEEP_LAST | data.options | SETTINGS
    settings |= {"model_name_or_path": options.model, "learning_rate": rate, "seed": seed}
    settings |= dict(zip(("train_file", "validation_file", "test_file"), files, strict=True))
    if start == SIGNED:
        settings["model_name_or_path"] = ROOT / "model_cards" / SIGNED
        del settings["attn_activation"]  # that of the encoder
    with TemporaryDirectory() as folder:
        results = train("bert", settings, Path(folder) / "run")
    return {"validation_accuracy": results["eval_accuracy"], "test_accuracy": results["test_accuracy"]}, files


def rates(runs: DataFrame) -> str:
    """Validation accuracy by rate, one seed, and how far a rate is from the best of each row on average; of sets that
    have all rates."""
    first = runs[runs["seed"] == SEEDS[0]]
    scores = 100 * first.pivot_table("validation_accuracy", ["task", "start"], "rate", sort=False).dropna()
    rows = [[TASKS[task].title, start, *map("{:.1f}".format, row)] for (task, start), row in scores.iterrows()]
    for start, group in scores.rsub(scores.max(axis=1), axis=0).groupby("start", sort=False):
        rows.append(["**below the best, mean**", start, *map("{:.1f}".format, group.mean())])
    return markdown(["data", "encoder", *map("{:g}".format, RATES)], rows)


def encoders(runs: DataFrame) -> str:
    """Test accuracy of both encoders, each at its own best rate, and the difference."""
    rows = []
    for task in runs["task"].unique():
        chosen = [where(runs, task=task, start=name, rate=best_rate(runs, task, name)) for name in STARTS]
        cells = [f"{spread(group, 'test_accuracy', 100)} ({group['rate'].iloc[0]:g})" for group in chosen]
        difference = comparison(*chosen[::-1], "test_accuracy", 100)
        rows.append([TASKS[task].title, str(len(chosen[0])), *cells, difference.text()])
    return markdown(["data", "seeds", "softmax (rate)", "minilm-tanhmax (rate)", "difference"], rows)


if __name__ == "__main__":
    main()
