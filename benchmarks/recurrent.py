"""Recurrent models: the accuracy of TanhMax and softmax, of hard and soft attention.

    python benchmarks/recurrent.py --data-dir DIR --seeds 3
    python benchmarks/recurrent.py --data-dir DIR --only synthetic sst2

`DIR` holds sst2/, 20news_sports/, ag_news/ and imdb/ with parquet files. The synthetic texts are generated. Runs go to
runs/recurrent; finished runs are not repeated and interrupted ones continue, so several processes may share the work.
The table of all finished runs goes to benchmarks/results/recurrent.md.
"""

import argparse
import json
from pathlib import Path
from statistics import median

from measure import write_table

from hf_bidir.cli.recipe import read_recipe
from hf_bidir.cli.text_demo import SETTINGS
from hf_bidir.common.statistics import mean_and_deviation
from hf_bidir.finetune.data.synthetic import SETS, write_splits
from hf_bidir.finetune.folder import RESULTS, read_record
from hf_bidir.finetune.tasks.recurrent_classification import recurrent_classification

ROOT = Path(__file__).resolve().parent.parent
ACTIVATIONS = ("tanhmax", "softmax")
FILES = {
    "sst2": ("sst2", {"train": "train", "validation": "validation", "test": "test"}),
    "20news": ("20news_sports", {"train": "paper_train", "test": "paper_test"}),
    "ag-news": ("ag_news", {"train": "train", "validation": "validation", "test": "test"}),
    "imdb": ("imdb", {"train": "train", "test": "test"}),
}
RECIPES = {"sst2": "sst2-rnn", "20news": "20news-rnn", "ag-news": "ag-news-rnn", "imdb": "imdb-lstm"}
SELECTIONS = {"synthetic": ("soft", "hard")}
HEADER = ["data", "selection", "activation", "seeds", "test accuracy", "recall of the worst class", "seconds a run"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, counted from 0")
    names = ["synthetic", *RECIPES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="DATA", help=", ".join(names))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/recurrent", help="where the runs go")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/recurrent.md")
    options = parser.parse_args()
    for seed in range(options.seeds):
        for data in options.only:
            for selection in SELECTIONS.get(data, ("soft",)):
                for activation in ACTIVATIONS:
                    train(data, selection, activation, seed, options)
    rows = [
        row(data, selection, activation, options.runs)
        for data in names
        for selection in SELECTIONS.get(data, ("soft",))
        for activation in ACTIVATIONS
    ]
    notes = (
        "Mean ± standard deviation over seeds; validation data selected the checkpoint, both activations have the "
        "same recipe. Recall of the worst class is the mean over seeds."
    )
    write_table(options.results, "Recurrent models", notes, HEADER, [cells for cells in rows if cells], "cpu")


def folder_of(data: str, selection: str, activation: str, runs: Path) -> Path:
    return runs / f"{data}-{selection}-{activation}"


def train(data: str, selection: str, activation: str, seed: int, options: argparse.Namespace) -> None:
    """Train one run unless it is finished."""
    folder = folder_of(data, selection, activation, options.runs) / f"seed{seed}"
    if read_record(folder).get("status") == "finished":
        return
    print(f"\n{folder}")
    if data == "synthetic":
        files = write_splits(SETS["small"].split(), options.runs / "synthetic")
        given = SETTINGS | {"attn_selection": selection, "attn_activation": activation}
    else:
        place, names = FILES[data]
        files = {split: options.data_dir / place / f"{file}.parquet" for split, file in names.items()}
        recipe = ROOT / f"training/recipes/{RECIPES[data]}-{activation}.yaml"
        given = read_recipe(recurrent_classification.options, recipe)
    given |= {f"{split}_file": file for split, file in files.items()}
    recurrent_classification(given | {"seed": seed, "output_dir": folder})


def row(data: str, selection: str, activation: str, runs: Path) -> list[str] | None:
    """The table's row for one model over finished seeds; None without any."""
    seeds = sorted(folder_of(data, selection, activation, runs).glob("seed*"))
    done = [folder for folder in seeds if read_record(folder).get("status") == "finished"]
    if not done:
        return None
    results = [json.loads((folder / RESULTS).read_text(encoding="utf-8")) for folder in done]
    recalls = [min(v for k, v in result.items() if k.startswith("test_recall_")) for result in results]
    seconds = median(read_record(folder)["duration_seconds"] for folder in done)
    accuracy = mean_and_deviation([100 * result["test_accuracy"] for result in results], digits=1)
    return [
        *(data, selection, activation, str(len(done)), accuracy),
        f"{100 * sum(recalls) / len(recalls):.1f}",
        f"{seconds:.0f}",
    ]


if __name__ == "__main__":
    main()
