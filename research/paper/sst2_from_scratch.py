"""SST-2 from scratch: does a small BERT with TanhMax attention learn as well as one with softmax?

    python -m research.paper.sst2_from_scratch --data-dir DIR --seeds 3

`DIR` holds train.parquet, validation.parquet and test.parquet. A run becomes a row of results/sst2_from_scratch.csv,
and one that has a row is not repeated; an interrupted one continues in runs/sst2-from-scratch. `make tables` makes the
table.
"""

from functools import partial
from pathlib import Path
from typing import Any

from pandas import DataFrame

from benchmarks.runs import PAIR, check_runs, comparison, markdown, spread, where
from benchmarks.seeds import TESTED, holm
from hf_bidir.finetune.arguments import TextDataArguments
from research.paper.repeats import files_without_repeats
from research.runs import ROOT, command_line, grid, read_record, recipe, run_grid, train

FILE = Path(__file__).with_name("results") / "sst2_from_scratch.csv"
METRICS = ("accuracy", "macro_f1", "recall_negative", "recall_positive")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds {train,validation,test}.parquet")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, counted from 0")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/sst2-from-scratch", help="where the runs go")
    options = parser.parse_args()
    trials = grid(seed=range(options.seeds), activation=PAIR)
    run_grid(FILE, trials, partial(trained, options.data_dir, options.runs), ("activation", "seed"))


def trained(data_dir: Path, runs: Path, activation: str, seed: int) -> tuple[dict[str, Any], list[Path]]:
    """Train one run unless it is finished."""
    folder = runs / f"{activation}-seed{seed}"
    files = {f"{split}_file": data_dir / f"{split}.parquet" for split in ("train", "validation", "test")}
    files = {name: str(file) for name, file in files.items()}
    cleaned = files_without_repeats(TextDataArguments(**files), runs / "data")
    given = recipe(f"sst2-{activation}") | {"seed": seed}
    given |= {f"{split}_file": file for split, file in cleaned.items()}
    results, record = train("bert", given, folder), read_record(folder)
    row = {name: results[f"test_{name}"] for name in ("loss", *METRICS)}
    row |= {"parameters": record["num_parameters"], "seconds": record["duration_seconds"]}
    return row, list(files.values())


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
