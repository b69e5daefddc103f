"""SST-2 from scratch: does a small BERT with TanhMax attention learn as well as one with softmax?

    python benchmarks/sst2_from_scratch.py --data-dir DIR --seeds 3

`DIR` holds train.parquet, validation.parquet and test.parquet. Runs go to runs/sst2-from-scratch; a finished
run is not repeated and an interrupted one continues. The table goes to
benchmarks/results/sst2_from_scratch.md.
"""

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from hf_bidir.cli.recipe import read_recipe
from hf_bidir.finetune.folder import RESULTS, read_record
from hf_bidir.finetune.tasks.text_classification import text_classification

ROOT = Path(__file__).resolve().parent.parent
ACTIVATIONS = ("tanhmax", "softmax")
METRICS = ("accuracy", "macro_f1", "recall_negative", "recall_positive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds {train,validation,test}.parquet")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, counted from 0")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/sst2-from-scratch", help="where the runs go")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/sst2_from_scratch.md")
    options = parser.parse_args()
    runs = {
        activation: [finished_run(activation, seed, options) for seed in range(options.seeds)]
        for activation in ACTIVATIONS
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(table(runs), encoding="utf-8")
    print(table(runs))
    print(f"saved: {options.results}")


def finished_run(activation: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Record and results of one run, which is trained unless it is finished."""
    folder = options.runs / f"{activation}-seed{seed}"
    if read_record(folder).get("status") != "finished":
        files = {f"{split}_file": options.data_dir / f"{split}.parquet" for split in ("train", "validation", "test")}
        recipe = read_recipe(text_classification.options, ROOT / f"training/recipes/sst2-{activation}.yaml")
        text_classification(recipe | files | {"seed": seed, "output_dir": folder})
    return read_record(folder) | {"results": json.loads((folder / RESULTS).read_text(encoding="utf-8"))}


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Test scores in percent, mean ± standard deviation over seeds, with data and machine."""
    lines = [f"| activation | seeds | {' | '.join(METRICS)} |", "|---|---|" + "---|" * len(METRICS)]
    means = {}
    for activation, of_seeds in runs.items():
        cells = []
        for metric in METRICS:
            values = [100 * run["results"][f"test_{metric}"] for run in of_seeds]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.1f}{spread}")
            means[activation, metric] = mean(values)
        lines.append(f"| {activation} | {len(of_seeds)} | {' | '.join(cells)} |")
    first, *_ = of_seeds
    difference = means["tanhmax", "accuracy"] - means["softmax", "accuracy"]
    hardware, rows = first["hardware"], {name: split["rows"] for name, split in first["data"].items()}
    machine = ", ".join(
        [hardware["cpu"], f"{hardware['cores']} cores", f"{hardware['threads']} threads", *hardware["gpus"]]
    )
    versions = ", ".join(f"{library} {first['versions'][library]}" for library in ("torch", "transformers"))
    return "\n".join(
        [
            "# SST-2 from scratch",
            "",
            "`python benchmarks/sst2_from_scratch.py --data-dir DIR --seeds N`: test numbers in percent,",
            "mean and standard deviation over seeds, of the checkpoint with the best validation accuracy.",
            f"Rows: {rows}. {first['num_parameters']:,} parameters.",
            "",
            *lines,
            "",
            f"TanhMax minus softmax, mean accuracy: {difference:+.1f} points.",
            "",
            f"Machine: {machine}; {versions}.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
