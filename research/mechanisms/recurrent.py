"""Recurrent models: the accuracy of TanhMax and softmax, of hard and soft attention.

    python -m research.mechanisms.recurrent --data-dir DIR --seeds 3
    python -m research.mechanisms.recurrent --data-dir DIR --only synthetic sst2

`DIR` holds sst2/, 20news_sports/, ag_news/ and imdb/ with parquet files. The synthetic texts are generated. A run
becomes a row of results/recurrent.csv, and one that has a row is not repeated; interrupted ones continue in
runs/recurrent, so several processes may share the work. `make tables` makes the table.
"""

import argparse
from pathlib import Path
from typing import Any

from pandas import DataFrame

from benchmarks import measure
from benchmarks.runs import PAIR, check_runs, comparisons, has_run, markdown, spread, where
from hf_bidir.cli.script import read_recipe
from hf_bidir.cli.text_demo import SETTINGS
from hf_bidir.common.statistics import TESTED
from hf_bidir.finetune.data.synthetic import SETS, write_splits
from hf_bidir.finetune.record import read_record
from training import recurrent_classification

FILES = {
    "sst2": ("sst2", {"train": "train", "validation": "validation", "test": "test"}),
    "20news": ("20news_sports", {"train": "bydate_train", "test": "bydate_test"}),
    "ag-news": ("ag_news", {"train": "train", "validation": "validation", "test": "test"}),
    "imdb": ("imdb", {"train": "train", "test": "test"}),
}
FILE = Path(__file__).with_name("results") / "recurrent.csv"
RECIPES = {"sst2": "sst2-rnn", "20news": "20news-rnn", "ag-news": "ag-news-rnn", "imdb": "imdb-lstm"}
SELECTIONS = {"synthetic": ("soft", "hard")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, counted from 0")
    names = ["synthetic", *RECIPES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="DATA", help=", ".join(names))
    parser.add_argument("--runs", type=Path, default=measure.ROOT / "runs/recurrent", help="where the runs go")
    options = parser.parse_args()
    for seed in range(options.seeds):
        for data in options.only:
            for selection in SELECTIONS.get(data, ("soft",)):
                for activation in PAIR:
                    run = {"data": data, "selection": selection, "activation": activation, "seed": seed}
                    if not has_run(FILE, **run):
                        train(run, options)


def train(run: dict[str, Any], options: argparse.Namespace) -> None:
    """Train one run unless it is finished, and save its row."""
    data, activation = run["data"], run["activation"]
    folder = options.runs / "-".join(map(str, run.values()))
    if data == "synthetic":
        files = write_splits(SETS["small"].split(), options.runs / "synthetic")
        given = SETTINGS | {"attn_selection": run["selection"], "attn_activation": activation}
    else:
        place, names = FILES[data]
        files = {split: options.data_dir / place / f"{file}.parquet" for split, file in names.items()}
        recipe = measure.ROOT / f"training/recipes/{RECIPES[data]}-{activation}.yaml"
        given = read_recipe(recipe) | {"remove_repeated": True}
    given |= {f"{split}_file": file for split, file in files.items()} | {"seed": run["seed"]}
    results = measure.train_once(recurrent_classification.main, given, folder)
    row = run | {name: results[f"test_{name}"] for name in ("accuracy", "macro_f1", "loss")}
    row["worst_recall"] = min(value for name, value in results.items() if name.startswith("test_recall_"))
    row |= {"epochs": results["epoch"], "seconds": read_record(folder)["duration_seconds"]}
    measure.save_run(FILE, list(run), row, *files.values())
    print(row, flush=True)


def table(runs: DataFrame, seeds: int) -> str:
    """One row for each data set and selection, with the difference of the accuracies."""
    by = ["data", "selection"]
    check_runs(runs, [*by, "activation"], seeds)
    compared = comparisons(runs, by, "activation", PAIR, {"accuracy": 100})
    rows = []
    for (data, selection, _), one in compared.items():
        pair = [where(runs, data=data, selection=selection, activation=activation) for activation in PAIR]
        accuracies, recalls = ([spread(of, column, 100) for of in pair] for column in ("accuracy", "worst_recall"))
        rows.append([data, selection, str(len(pair[0])), *accuracies, *one.cells(), *recalls])
    header = ["data", "selection", "seeds", "TanhMax", "softmax", *TESTED]
    return markdown([*header, "worst recall, TanhMax", "worst recall, softmax"], rows)


if __name__ == "__main__":
    main()
