"""How close is a healed student at λ = 1 to its softmax teacher, and how long does healing take?

Healing is distillation that restores the hidden states of the softmax model.

    python benchmarks/healing.py minilm --model MINILM --imdb DIR --sst2 DIR
    python benchmarks/healing.py vit --fashion-mnist DIR
    python benchmarks/healing.py decoder --model DECODER --imdb DIR

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights, DECODER a causal language model such as
runs/checkpoints/imdb-lm-softmax of `make checkpoints`; a DIR holds the files of the data set. Runs go to runs/healing;
a finished run is not repeated (remove its folder for another model or other data), an interrupted one continues.
Held-out data: for MiniLM snippets of IMDB test reviews and SST-2 validation sentences, for the ViT the test images, for
the decoder blocks of IMDB test reviews. The tables go to benchmarks/results/healing_*.md.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from measure import write_table
from torch.utils.data import DataLoader

from hf_bidir.checkpoints.convert import convert_checkpoint, read_config, restore_softmax
from hf_bidir.cli.recipe import read_recipe
from hf_bidir.explain.signs import negative_share
from hf_bidir.finetune.distillation import student_and_teacher
from hf_bidir.finetune.folder import RESULTS, read_record
from hf_bidir.finetune.task import Task
from hf_bidir.finetune.tasks.distillation import distillation, prepared
from hf_bidir.finetune.tasks.image_classification import image_classification
from hf_bidir.hub import evaluate_checkpoint
from hf_bidir.hub.evaluation import local_folder

ROOT = Path(__file__).resolve().parent.parent
RUNS, TABLES = ROOT / "runs/healing", ROOT / "benchmarks/results"
# λ = 1 without training
SWAPPED = {"max_steps": 1, "learning_rate": 0.0, "warmup_ratio": 0.0, "negative_mass_until": 0.0}
HEADER = ["student", "steps", "relative squared error", "worst layer", "negative coefficients", "minutes (threads)"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    text = commands.add_parser("minilm", help="MiniLM on reviews")
    text.add_argument("--model", required=True, help="the softmax MiniLM, a folder or a name on the Hub")
    text.add_argument("--imdb", type=Path, required=True, help="holds train.parquet and test.parquet")
    text.add_argument("--sst2", type=Path, required=True, help="holds train.parquet and validation.parquet")
    images = commands.add_parser("vit", help="a small ViT on Fashion-MNIST")
    images.add_argument("--fashion-mnist", type=Path, required=True, help="holds the four IDX files")
    writer = commands.add_parser("decoder", help="a causal language model on reviews, with its perplexity")
    writer.add_argument("--model", required=True, help="the softmax model, a folder or a name on the Hub")
    writer.add_argument("--imdb", type=Path, required=True, help="holds train.parquet and test.parquet")
    for command in (text, images, writer):
        command.add_argument("--steps", type=int, nargs="+", help="lengths of healing; by default those of the table")
    options = parser.parse_args()
    {"minilm": minilm, "vit": vit, "decoder": decoder}[options.what](options)


def minilm(options: argparse.Namespace) -> None:
    given = recipe(distillation, "minilm-healed") | {
        "train_file": [str(options.imdb / "train.parquet"), str(options.sst2 / "train.parquet")],
        "validation_file": [str(options.imdb / "test.parquet"), str(options.sst2 / "validation.parquet")],
        "model_name_or_path": options.model,
    }
    rows = healed_rows("minilm", given, options.steps or [30, 700, 1400])
    notes = (
        "MiniLM-L6 at λ = 1 beside its softmax teacher, on 500 held-out snippets of IMDB and SST-2; healed without "
        "penalties on signs (--keep_signs false)."
    )
    write_table(TABLES / "healing_minilm.md", "Healing MiniLM", notes, HEADER, rows, "cpu")


def vit(options: argparse.Namespace) -> None:
    train, test = (str(options.fashion_mnist / f"{split}-images-idx3-ubyte.gz") for split in ("train", "t10k"))
    teacher, labelled = RUNS / "vit-teacher", {"train_file": train, "test_file": test}
    given = recipe(image_classification, "fashion-mnist-softmax") | labelled | {"num_train_epochs": 3}
    trained = finished(image_classification, given, teacher)
    given = recipe(distillation, "fashion-mnist-healed")
    given |= {"train_file": [train], "validation_file": [test], "model_name_or_path": teacher}
    rows = healed_rows("vit", given, options.steps or [1500])
    for row, name in zip(rows, ("swapped", "centred", *(f"{row[1]}-steps" for row in rows[2:])), strict=True):
        student = RUNS / f"vit-{name}"
        still = {"max_steps": 1, "learning_rate": 0.0, "warmup_ratio": 0.0, "save_steps": 1, "eval_strategy": "no"}
        given = labelled | still | {"load_best_model_at_end": False, "model_name_or_path": student}
        tested = finished(image_classification, given, RUNS / f"{student.name}-tested")
        row.append(f"{100 * tested['test_accuracy']:.2f}")
    notes = (
        "The ViT of fashion-mnist-softmax.yaml after 3 epochs, λ = 1 beside its softmax teacher, on 500 test images; "
        f"no labels were used. Test accuracy of the teacher: {100 * trained['test_accuracy']:.2f} %."
    )
    header = [*HEADER, "test accuracy, %"]
    write_table(TABLES / "healing_vit.md", "Healing a ViT", notes, header, rows, "cpu")


def decoder(options: argparse.Namespace) -> None:
    """The same table with perplexities, also for the stock model and its conversion at λ = 0."""
    train, test = (str(options.imdb / f"{split}.parquet") for split in ("train", "test"))
    stock, equal = RUNS / "decoder-stock", RUNS / "decoder-converted"
    if not stock.is_dir():
        signed = read_config(options.model).model_type.startswith("bidir_")
        restore_softmax(options.model, stock) if signed else shutil.copytree(local_folder(options.model), stock)
    if not equal.is_dir():
        convert_checkpoint(stock, equal, negative_mass=0.0)
    given = recipe(distillation, "imdb-lm-healed")
    given |= {"train_file": [train], "validation_file": [test], "model_name_or_path": stock}
    rows = healed_rows("decoder", given, options.steps or [30, 300, 1000])
    rows = [[name, "0", "-", "-", "-", "-"] for name in ("stock softmax", "converted, λ = 0")] + rows
    folders = [stock, equal, *(RUNS / f"decoder-{row[1]}-steps" for row in rows[4:])]
    folders[2:2] = [RUNS / "decoder-swapped", RUNS / "decoder-centred"]
    for row, folder in zip(rows, folders, strict=True):
        row.append(f"{evaluate_checkpoint(folder, test).scores['perplexity']:.4f}")
    parameters = read_record(folders[2])["num_parameters"]
    notes = (
        f"A causal language model of {parameters / 1e6:.1f} million parameters at λ = 1 beside its softmax teacher, on "
        "held-out reviews of IMDB, and its perplexity on 500 blocks of 256 tokens. A model without biases, such as "
        "Llama, cannot be centred: that row repeats the one above."
    )
    write_table(TABLES / "healing_decoder.md", "Healing a decoder", notes, [*HEADER, "perplexity"], rows, "cpu")


def healed_rows(name: str, given: dict[str, Any], lengths: list[int]) -> list[list[str]]:
    """Two rows for students without healing, one of them centred, then one row per length of healing."""
    runs = {
        ("swapped in", "swapped"): SWAPPED | {"centre": False},
        ("centred, swapped in", "centred"): SWAPPED,
        **{("centred, healed", f"{steps}-steps"): {"max_steps": steps} for steps in lengths},
    }
    rows = []
    for (student, folder), changed in runs.items():
        folder = RUNS / f"{name}-{folder}"
        results = finished(distillation, given | {"keep_signs": False} | changed, folder)
        worst = max(value for key, value in results.items() if key.startswith("eval_relative_error_"))
        healed = student.endswith("healed")
        record = read_record(folder)
        minutes = f"{record['duration_seconds'] / 60:.1f} ({record['hardware']['threads']})"
        rows.append([
            student,
            folder.name.split("-")[1] if healed else "0",
            f"{100 * results['eval_relative_error']:.2f} %",
            f"{100 * worst:.2f} %",
            f"{100 * share(folder, given):.0f} %",
            minutes if healed else "-",
        ])  # fmt: skip
    return rows


def share(folder: Path, given: dict[str, Any]) -> float:
    """The share of negative coefficients of a student on held-out data."""
    data, arguments, _, args = distillation.read(given)
    student, _, processors = student_and_teacher(str(folder), arguments.model_name_or_path)
    splits, (_, collator), _ = prepared(data, args, str(folder), student, processors)
    batches = DataLoader(splits.validation, batch_size=32, collate_fn=collator)
    return negative_share(student.eval(), batches)


def recipe(task: Task, name: str) -> dict[str, Any]:
    return read_recipe(task.options, ROOT / f"training/recipes/{name}.yaml")


def finished(task: Task, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The results of a run, which is trained unless it is finished."""
    if read_record(folder).get("status") != "finished":
        task(given | {"output_dir": folder})
    return json.loads((folder / RESULTS).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
