"""How close is a healed student at λ = 1 to its softmax teacher, and how long does healing take?

Healing is distillation that restores the hidden states of the softmax model.

    python benchmarks/healing.py --model MINILM --data-dir DIR

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights; DIR has imdb/{train,test}.parquet and
sst2/{train,validation}.parquet. Held-out data: snippets of IMDB test reviews and SST-2 validation sentences. Each
student becomes a row of results/healing.csv, and one that has a row is not healed again; `make tables` makes the table.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from pandas import DataFrame
from torch.utils.data import DataLoader

from benchmarks.measure import RESULTS, ROOT, command_line, recipe, run_grid, train_once
from benchmarks.runs import check_runs, listing
from hf_bidir.checkpoints.layer_hooks import negative_share
from hf_bidir.cli.script import parse
from hf_bidir.finetune.heal import healing_data, student_and_teacher
from hf_bidir.finetune.record import read_record
from training import distill

FILE = RESULTS / "healing.csv"
FILES = {"train_file": ["imdb/train", "sst2/train"], "validation_file": ["imdb/test", "sst2/validation"]}
# λ = 1 without training
SWAPPED = {"max_steps": 1, "learning_rate": 0.0, "warmup_ratio": 0.0, "negative_mass_until": 0.0}
COLUMNS = {  # of the table: heading and format
    "student": ("student", "{}"),
    "steps": ("steps", "{}"),
    "relative_error": ("relative squared error", "{:.2%}"),
    "worst_layer": ("worst layer", "{:.2%}"),
    "negative_share": ("negative coefficients", "{:.0%}"),
    "minutes": ("minutes", "{:.1f}"),
    "threads": ("threads", "{:.0f}"),
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", required=True, help="the softmax MiniLM, a folder or a name on the Hub")
    parser.add_argument("--data-dir", type=Path, required=True, help="holds a folder for each data set")
    parser.add_argument("--steps", type=int, nargs="+", default=[30], help="lengths of healing")
    options = parser.parse_args()
    students = [("swapped", 0), ("centred, swapped", 0)]
    students += [("centred, healed", steps) for steps in options.steps]
    trials = [{"student": name, "steps": steps, "seed": 0} for name, steps in students]
    run_grid(FILE, trials, partial(healed, options))


def healed(options: argparse.Namespace, student: str, steps: int, seed: int) -> tuple[dict[str, Any], list[Path]]:
    """The measures of a student, which is healed unless it is finished, and the data files."""
    data = {name: [str(options.data_dir / f"{file}.parquet") for file in files] for name, files in FILES.items()}
    settings = recipe("minilm-healed") | data
    settings |= {"model_name_or_path": options.model, "keep_signs": False, "seed": seed}
    settings |= {"max_steps": steps} if steps else SWAPPED | {"centre": student != "swapped"}
    folder = ROOT / "runs/healing" / f"{student.replace(', ', '-').replace(' ', '-')}-{steps}"
    results = train_once(distill.main, settings, folder)
    row = {
        "relative_error": results["eval_relative_error"],
        "worst_layer": max(value for key, value in results.items() if key.startswith("eval_relative_error_")),
        "negative_share": share(folder, settings),
    }
    if steps:
        record = read_record(folder)
        row |= {"minutes": record["duration_seconds"] / 60, "threads": record["hardware"]["threads"]}
    return row, [Path(file) for files in data.values() for file in files]


def share(folder: Path, settings: dict[str, Any]) -> float:
    """The share of negative coefficients of a student on held-out data."""
    data, arguments, _, args = parse(distill.OPTIONS, settings)
    student, _, processors = student_and_teacher(str(folder), arguments.model_name_or_path)
    splits, _, collators = healing_data(data, args, str(folder), student, processors)
    collator = collators.get("eval_collator", collators["data_collator"])
    return negative_share(student.eval(), DataLoader(splits.validation, batch_size=32, collate_fn=collator))


def table(runs: DataFrame) -> str:
    """One row a student."""
    runs = runs.sort_values("relative_error", ascending=False, kind="stable")
    check_runs(runs, ["student", "steps"], 1)
    return listing(runs.drop(columns="seed"), COLUMNS)


if __name__ == "__main__":
    main()
