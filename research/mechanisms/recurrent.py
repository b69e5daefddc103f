"""Recurrent models: the accuracy of TanhMax and softmax, of hard and soft attention.

    python -m research.mechanisms.recurrent --data-dir DIR --seeds 3
    python -m research.mechanisms.recurrent --data-dir DIR --only synthetic sst2

`DIR` holds sst2/, 20news_sports/, ag_news/ and imdb/ with parquet files. The synthetic texts are generated. A run
becomes a row of results/recurrent.csv, and one that has a row is not repeated; interrupted ones continue in
runs/recurrent, so several processes may share the work. `make tables` makes the table.
"""

from functools import partial
from pathlib import Path
from typing import Any

from pandas import DataFrame

from benchmarks.runs import PAIR, check_runs, comparisons, markdown, spread, where
from benchmarks.seeds import TESTED
from hf_bidir.finetune.arguments import TextDataArguments
from research.paper.repeats import files_without_repeats
from research.runs import ROOT, command_line, read_record, recipe, run_grid, train
from research.synthetic import SETS, write_splits

FILES = {
    "sst2": ("sst2", {"train": "train", "validation": "validation", "test": "test"}),
    "20news": ("20news_sports", {"train": "bydate_train", "test": "bydate_test"}),
    "ag-news": ("ag_news", {"train": "train", "validation": "validation", "test": "test"}),
    "imdb": ("imdb", {"train": "train", "test": "test"}),
}
FILE = Path(__file__).with_name("results") / "recurrent.csv"
RECIPES = {"sst2": "sst2-rnn", "20news": "20news-rnn", "ag-news": "ag-news-rnn", "imdb": "imdb-lstm"}
SELECTIONS = {"synthetic": ("soft", "hard")}
SETTINGS = {  # options of training/recurrent_classification.py for short synthetic texts
    "embedding_size": 32,
    "hidden_size": 16,
    "max_length": 12,
    "num_train_epochs": 5,
    "learning_rate": 1e-2,
    "per_device_train_batch_size": 32,
    "logging_steps": 0.2,
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, counted from 0")
    names = ["synthetic", *RECIPES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="DATA", help=", ".join(names))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/recurrent", help="where the runs go")
    options = parser.parse_args()
    trials = [
        {"data": data, "selection": selection, "activation": activation, "seed": seed}
        for seed in range(options.seeds)
        for data in options.only
        for selection in SELECTIONS.get(data, ("soft",))
        for activation in PAIR
    ]
    run_grid(FILE, trials, partial(trained, options.data_dir, options.runs))


def trained(
    data_dir: Path, runs: Path, data: str, selection: str, activation: str, seed: int
) -> tuple[dict[str, Any], list[Path]]:
    """Train one run unless it is finished."""
    folder = runs / f"{data}-{selection}-{activation}-{seed}"
    if data == "synthetic":
        files = write_splits(SETS["small"].split(), runs / "synthetic")
        settings = SETTINGS | {"attn_selection": selection, "attn_activation": activation}
    else:
        place, names = FILES[data]
        files = {split: data_dir / place / f"{file}.parquet" for split, file in names.items()}
        settings = recipe(f"{RECIPES[data]}-{activation}")
        options = {f"{split}_file": str(file) for split, file in files.items()}
        options["validation_share"] = settings.get("validation_share", 0.1)
        files = files_without_repeats(TextDataArguments(**options), runs / "data" / data)
    settings |= {f"{split}_file": file for split, file in files.items()} | {"seed": seed}
    results = train("recurrent", settings, folder)
    row = {name: results[f"test_{name}"] for name in ("accuracy", "macro_f1", "loss")}
    row["worst_recall"] = min(value for name, value in results.items() if name.startswith("test_recall_"))
    row |= {"epochs": results["epoch"], "seconds": read_record(folder)["duration_seconds"]}
    return row, list(files.values())


def table(runs: DataFrame, seeds: int) -> str:
    """One row for each data set and selection, with the difference of the accuracies."""
    by = ["data", "selection"]
    check_runs(runs, [*by, "activation"], seeds)
    compared = comparisons(runs, by, "activation", PAIR, {"accuracy": 100})
    rows = []
    for (data, selection, _), test in compared.items():
        pair = [where(runs, data=data, selection=selection, activation=activation) for activation in PAIR]
        accuracies, recalls = ([spread(of, column, 100) for of in pair] for column in ("accuracy", "worst_recall"))
        rows.append([data, selection, str(len(pair[0])), *accuracies, *test.cells(), *recalls])
    header = ["data", "selection", "seeds", "TanhMax", "softmax", *TESTED]
    return markdown([*header, "worst recall, TanhMax", "worst recall, softmax"], rows)


if __name__ == "__main__":
    main()
