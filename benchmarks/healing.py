"""How close is a healed student at λ = 1 to its softmax teacher, and how long does healing take?

Healing is distillation that restores the hidden states of the softmax model.

    python benchmarks/healing.py minilm --model MINILM --imdb DIR --sst2 DIR
    python benchmarks/healing.py vit --fashion-mnist DIR
    python benchmarks/healing.py decoder --model DECODER --imdb DIR

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights, DECODER a causal language model such as
runs/checkpoints/imdb-lm-softmax of `make checkpoints`; a DIR holds the files of the data. Runs go to runs/healing; a
finished run is not repeated (remove its folder for another model or other data), an interrupted one continues.
Held-out data: for MiniLM snippets of IMDB test reviews and SST-2 validation sentences, for the ViT the test images, for
the decoder blocks of IMDB test reviews. Each student becomes a row of results/healing.csv; `make tables` makes the
tables.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from pandas import DataFrame
from torch.utils.data import DataLoader

from benchmarks.measure import RESULTS, ROOT, command_line, recipe, save_runs, train_once
from benchmarks.runs import check_runs, listing, where
from hf_bidir.checkpoints.convert import convert_checkpoint, restore_softmax
from hf_bidir.checkpoints.layer_hooks import negative_share
from hf_bidir.checkpoints.reading import read_config
from hf_bidir.cli.script import parse
from hf_bidir.common.model_types import is_signed
from hf_bidir.finetune.heal import healing_data, student_and_teacher
from hf_bidir.finetune.record import read_record
from hf_bidir.hub import evaluate_checkpoint
from hf_bidir.hub.evaluate import local_folder
from training import distill, image_classification

RUNS = ROOT / "runs/healing"
FILE = RESULTS / "healing.csv"
KEY = ("model", "student", "steps", "seed")
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
    "accuracy": ("test accuracy", "{:.2%}"),
    "perplexity": ("perplexity", "{:.4f}"),
}


def main() -> None:
    parser = command_line(__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    text = commands.add_parser("minilm", help="MiniLM on reviews")
    text.add_argument("--model", required=True, help="the softmax MiniLM, a folder or a name on the Hub")
    text.add_argument("--imdb", type=Path, required=True, help="holds train.parquet and test.parquet")
    text.add_argument("--sst2", type=Path, required=True, help="holds train.parquet and validation.parquet")
    images = commands.add_parser("vit", help="a small ViT on Fashion-MNIST")
    images.add_argument("--fashion-mnist", type=Path, required=True, help="holds train.parquet and test.parquet")
    writer = commands.add_parser("decoder", help="a causal language model on reviews, with its perplexity")
    writer.add_argument("--model", required=True, help="the softmax model, a folder or a name on the Hub")
    writer.add_argument("--imdb", type=Path, required=True, help="holds train.parquet and test.parquet")
    for command in (text, images, writer):
        command.add_argument("--steps", type=int, nargs="+", help="lengths of healing; by default those of the table")
    options = parser.parse_args()
    {"minilm": minilm, "vit": vit, "decoder": decoder}[options.what](options)


def minilm(options: argparse.Namespace) -> None:
    given = recipe("minilm-healed") | {
        "train_file": [str(options.imdb / "train.parquet"), str(options.sst2 / "train.parquet")],
        "validation_file": [str(options.imdb / "test.parquet"), str(options.sst2 / "validation.parquet")],
        "model_name_or_path": options.model,
    }
    save("minilm", list(healed("minilm", given, options.steps or [30, 700, 1400]).values()), given)


def vit(options: argparse.Namespace) -> None:
    train, test = (str(options.fashion_mnist / f"{split}.parquet") for split in ("train", "test"))
    teacher, labelled = RUNS / "vit-teacher", {"train_file": train, "test_file": test}
    given = recipe("fashion-mnist-softmax") | labelled | {"num_train_epochs": 3}
    trained = train_once(image_classification.main, given, teacher)
    given = recipe("fashion-mnist-healed")
    given |= {"train_file": [train], "validation_file": [test], "model_name_or_path": teacher}
    rows = healed("vit", given, options.steps or [1500])
    for folder, row in rows.items():
        still = {"max_steps": 1, "learning_rate": 0.0, "warmup_ratio": 0.0, "save_steps": 1, "eval_strategy": "no"}
        still |= labelled | {"load_best_model_at_end": False, "model_name_or_path": folder}
        row["accuracy"] = train_once(image_classification.main, still, RUNS / f"{folder.name}-tested")["test_accuracy"]
    softmax = {"student": "stock softmax", "steps": 0, "accuracy": trained["test_accuracy"]}
    save("vit", [softmax, *rows.values()], given)


def decoder(options: argparse.Namespace) -> None:
    """The same with perplexities, also for the stock model and its conversion at λ = 0."""
    train, test = (str(options.imdb / f"{split}.parquet") for split in ("train", "test"))
    stock, equal = RUNS / "decoder-stock", RUNS / "decoder-converted"
    if not stock.is_dir():
        signed = is_signed(type(read_config(options.model)).model_type)
        restore_softmax(options.model, stock) if signed else shutil.copytree(local_folder(options.model), stock)
    if not equal.is_dir():
        convert_checkpoint(stock, equal, negative_mass=0.0)
    given = recipe("imdb-lm-healed")
    given |= {"train_file": [train], "validation_file": [test], "model_name_or_path": stock}
    rows = {stock: {"student": "stock softmax", "steps": 0}, equal: {"student": "converted, λ = 0", "steps": 0}}
    rows |= healed("decoder", given, options.steps or [30, 300, 1000])
    for folder, row in rows.items():
        row["perplexity"] = evaluate_checkpoint(folder, test).scores["perplexity"]
    save("decoder", list(rows.values()), given)


def save(model: str, rows: list[dict[str, Any]], given: dict[str, Any]) -> None:
    for row in rows:
        files = [Path(file) for file in (*given["train_file"], *given["validation_file"])]
        save_runs(FILE, KEY, [{"model": model, "seed": 0} | row], *files)
        print(row)


def healed(name: str, given: dict[str, Any], lengths: list[int]) -> dict[Path, dict[str, Any]]:
    """By folder, the measures of two students without healing, one of them centred, and of one for each length."""
    runs = {
        ("swapped in", "swapped"): SWAPPED | {"centre": False},
        ("centred, swapped in", "centred"): SWAPPED,
        **{("centred, healed", f"{steps}-steps"): {"max_steps": steps} for steps in lengths},
    }
    rows = {}
    for (student, folder), changed in runs.items():
        folder = RUNS / f"{name}-{folder}"
        results = train_once(distill.main, given | {"keep_signs": False} | changed, folder)
        row = {
            "student": student,
            "steps": changed["max_steps"] if student.endswith("healed") else 0,
            "relative_error": results["eval_relative_error"],
            "worst_layer": max(value for key, value in results.items() if key.startswith("eval_relative_error_")),
            "negative_share": share(folder, given),
        }
        if row["steps"]:
            record = read_record(folder)
            row |= {"minutes": record["duration_seconds"] / 60, "threads": record["hardware"]["threads"]}
        rows[folder] = row
    return rows


def table(runs: DataFrame, model: str) -> str:
    """One row a student of a model."""
    runs = where(runs, model=model).sort_values("relative_error", ascending=False, na_position="first", kind="stable")
    check_runs(runs, ["student", "steps"], 1)
    return listing(runs.drop(columns="seed"), COLUMNS)


def share(folder: Path, given: dict[str, Any]) -> float:
    """The share of negative coefficients of a student on held-out data."""
    data, arguments, _, args = parse(distill.OPTIONS, given)
    student, _, processors = student_and_teacher(str(folder), arguments.model_name_or_path)
    splits, _, collators = healing_data(data, args, str(folder), student, processors)
    collator = collators.get("eval_collator", collators["data_collator"])
    batches = DataLoader(splits.validation, batch_size=32, collate_fn=collator)
    return negative_share(student.eval(), batches)


if __name__ == "__main__":
    main()
