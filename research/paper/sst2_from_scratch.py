"""SST-2 from scratch: does a small BERT with TanhMax attention learn as well as one with softmax?

    python -m research.paper.sst2_from_scratch --data-dir DIR --seeds 3

`DIR` holds train.parquet, validation.parquet and test.parquet. A run becomes a row of results/sst2_from_scratch.csv,
and one that has a row is not repeated; an interrupted one continues in runs/sst2-from-scratch. `make tables` makes the
table.
"""

import argparse
from pathlib import Path

from pandas import DataFrame

from benchmarks import measure
from benchmarks.runs import PAIR, check_runs, comparison, has_run, markdown, spread, where
from hf_bidir.cli.script import read_recipe
from hf_bidir.common.statistics import TESTED, holm
from hf_bidir.finetune.record import read_record
from training import text_classification

FILE = Path(__file__).with_name("results") / "sst2_from_scratch.csv"
METRICS = ("accuracy", "macro_f1", "recall_negative", "recall_positive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds {train,validation,test}.parquet")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, counted from 0")
    parser.add_argument("--runs", type=Path, default=measure.ROOT / "runs/sst2-from-scratch", help="where the runs go")
    options = parser.parse_args()
    for seed in range(options.seeds):
        for activation in PAIR:
            if not has_run(FILE, activation=activation, seed=seed):
                train(activation, seed, options)


def train(activation: str, seed: int, options: argparse.Namespace) -> None:
    """Train one run unless it is finished, and save its row."""
    folder = options.runs / f"{activation}-seed{seed}"
    files = {f"{split}_file": options.data_dir / f"{split}.parquet" for split in ("train", "validation", "test")}
    recipe = read_recipe(measure.ROOT / f"training/recipes/sst2-{activation}.yaml")
    given = recipe | files | {"remove_repeated": True, "seed": seed}
    results, record = measure.train_once(text_classification.main, given, folder), read_record(folder)
    row = {"activation": activation, "seed": seed} | {name: results[f"test_{name}"] for name in ("loss", *METRICS)}
    row |= {"parameters": record["num_parameters"], "seconds": record["duration_seconds"]}
    measure.save_run(FILE, ("activation", "seed"), row, *files.values())
    print(row, flush=True)


def table(runs: DataFrame, seeds: int) -> str:
    """One row for each metric, with the difference of the activations."""
    check_runs(runs, ["activation"], seeds)
    pair = [where(runs, activation=activation) for activation in PAIR]
    compared = holm({metric: comparison(*pair, metric, 100) for metric in METRICS})
    rows = [
        [metric.replace("_", " "), *(spread(of, metric, 100) for of in pair), *one.cells()]
        for metric, one in compared.items()
    ]
    return markdown(["test metric", *PAIR, *TESTED], rows)


if __name__ == "__main__":
    main()
