"""How close is a healed student at λ = 1 to its softmax teacher, and how long does healing take?

Healing is distillation that restores the hidden states of the softmax model.

    python benchmarks/healing.py minilm --model MINILM --data-dir DIR
    python benchmarks/healing.py decoder --model DECODER --data-dir DIR --steps 30 300

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights, DECODER a softmax language model such as
runs/imdb-lm-softmax; DIR has imdb/{train,test}.parquet and sst2/{train,validation}.parquet. Held-out data: snippets of
IMDB test reviews and SST-2 validation sentences for MiniLM, blocks of IMDB test reviews for the decoder. Each student
becomes a row of results/healing.csv, and one that has a row is not healed again; `make tables` makes the tables.
"""

from functools import partial
from pathlib import Path
from typing import Any

from pandas import DataFrame
from torch.utils.data import DataLoader

from benchmarks.measure import RESULTS, ROOT, command_line, recipe, run_grid, train_once
from benchmarks.runs import check_runs, listing, where
from hf_bidir.checkpoints.layer_hooks import negative_share
from hf_bidir.cli.script import parse
from hf_bidir.finetune.heal import healing_data, student_and_teacher
from hf_bidir.finetune.record import read_record
from hf_bidir.hub import evaluate_checkpoint
from training import distill

FILE = RESULTS / "healing.csv"
RECIPES = {"minilm": "minilm-healed", "decoder": "imdb-lm-healed"}
STEPS = {"minilm": [30, 700, 1400], "decoder": [30, 300, 1000]}
FOLDERS = {"minilm": ("imdb", "sst2"), "decoder": ("imdb",)}
HELD_OUT = {"imdb": "test", "sst2": "validation"}
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
    "perplexity": ("perplexity", "{:.4f}"),
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("kind", choices=RECIPES)
    parser.add_argument("--model", required=True, help="the softmax model, a folder or a name on the Hub")
    parser.add_argument("--data-dir", type=Path, required=True, help="holds a folder for each data set")
    parser.add_argument("--steps", type=int, nargs="+", help="lengths of healing; by default those of the table")
    options = parser.parse_args()
    students = [("stock softmax", 0)] if options.kind == "decoder" else []  # for its perplexity
    students += [("swapped in", 0), ("centred, swapped in", 0)]
    students += [("centred, healed", steps) for steps in options.steps or STEPS[options.kind]]
    trials = [{"model": options.kind, "student": name, "steps": steps, "seed": 0} for name, steps in students]
    run_grid(FILE, trials, partial(healed, options.model, options.data_dir))


def healed(
    softmax: str, data_dir: Path, model: str, student: str, steps: int, seed: int
) -> tuple[dict[str, Any], list[Path]]:
    """The measures of a student, which is healed unless it is finished, and the data files."""
    train = [data_dir / folder / "train.parquet" for folder in FOLDERS[model]]
    held_out = [data_dir / folder / f"{HELD_OUT[folder]}.parquet" for folder in FOLDERS[model]]
    files = [*train, *held_out]
    if student == "stock softmax":
        return {"perplexity": evaluate_checkpoint(softmax, str(held_out[0])).scores["perplexity"]}, files
    options = recipe(RECIPES[model]) | {"model_name_or_path": softmax, "keep_signs": False, "seed": seed}
    options |= {"train_file": list(map(str, train)), "validation_file": list(map(str, held_out))}
    options |= {"max_steps": steps} if steps else SWAPPED | {"centre": student != "swapped in"}
    folder = ROOT / "runs/healing" / f"{model}-{student.replace(', ', '-').replace(' ', '-')}-{steps}"
    results = train_once(distill.main, options, folder)
    row = {
        "relative_error": results["eval_relative_error"],
        "worst_layer": max(value for key, value in results.items() if key.startswith("eval_relative_error_")),
        "negative_share": share(folder, options),
    }
    if steps:
        record = read_record(folder)
        row |= {"minutes": record["duration_seconds"] / 60, "threads": record["hardware"]["threads"]}
    if model == "decoder":
        row["perplexity"] = evaluate_checkpoint(folder, str(held_out[0])).scores["perplexity"]
    return row, files


def share(folder: Path, options: dict[str, Any]) -> float:
    """The share of negative coefficients of a student on held-out data."""
    data, arguments, _, args = parse(distill.OPTIONS, options)
    student, _, processors = student_and_teacher(str(folder), arguments.model_name_or_path)
    splits, _, collators = healing_data(data, args, str(folder), student, processors)
    collator = collators.get("eval_collator", collators["data_collator"])
    return negative_share(student.eval(), DataLoader(splits.validation, batch_size=32, collate_fn=collator))


def table(runs: DataFrame, model: str) -> str:
    """One row a student of a model."""
    runs = where(runs, model=model).sort_values("relative_error", ascending=False, na_position="first", kind="stable")
    check_runs(runs, ["student", "steps"], 1)
    return listing(runs.drop(columns="seed"), COLUMNS)


if __name__ == "__main__":
    main()
