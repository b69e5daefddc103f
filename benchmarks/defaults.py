"""Accuracy of a new model on a small data set with the default options, beside three epochs, the former default.

    python benchmarks/defaults.py --cifar10 cifar10_jpeg/ --sst2 sst2/ --work runs/defaults

A run becomes a row of results/defaults.csv, and one that has a row is not repeated. `make tables` makes the table.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from datasets import ClassLabel, Dataset, Image
from pandas import DataFrame

from benchmarks.measure import RESULTS, save_run
from benchmarks.runs import check_runs, has_run, markdown, spread

CLASSES = 6
IMAGES, TEXTS = 2000, 2000
FILE = RESULTS / "defaults.csv"
FIXED = {"3 epochs": ["--num_train_epochs", "3", "--lr_scheduler_type", "linear", "--warmup_ratio", "0.1"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path, required=True, help="folder with train.parquet and test.parquet")
    parser.add_argument("--sst2", type=Path, required=True, help="folder with train.parquet and test.parquet")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, counted from 0")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the data and the runs")
    options = parser.parse_args()
    photographs = [image_folders(options.cifar10, options.runs / "photos", split) for split in ("train", "test")]
    texts = [csv_file(options.sst2, options.runs, split) for split in ("train", "test")]
    tasks = {
        f"{IMAGES} photographs, {CLASSES} classes": (
            ["training/image_classification.py", "--image_size", "32", "--patch_size", "4"],
            photographs,
        ),
        f"{TEXTS} sentences, 2 classes": (["training/text_classification.py"], texts),
    }
    for seed in range(options.seeds):
        for data, (command, files) in tasks.items():
            for name, extra in (FIXED | {"default": []}).items():
                run = {"data": data, "options": name, "seed": seed}
                if not has_run(FILE, **run):
                    folder = options.runs / f"{Path(command[0]).stem}-{name.replace(' ', '-')}-{seed}"
                    row = run | train([*command, *extra, "--seed", str(seed)], files, folder)
                    save_run(FILE, list(run), row, options.sst2 / "test.parquet", options.cifar10 / "test.parquet")
                    print(row, flush=True)


def train(command: list[str], files: list[Path], folder: Path) -> dict[str, float]:
    """The results of a training script."""
    started = time.monotonic()
    given = ["--train_file", str(files[0]), "--test_file", str(files[1]), "--output_dir", str(folder)]
    fixed = ["--use_cpu", "--disable_tqdm", "true"]
    subprocess.run([sys.executable, *command, *given, *fixed], check=True, stdout=sys.stderr)
    results = json.loads((folder / "all_results.json").read_text(encoding="utf-8"))
    seconds = time.monotonic() - started
    return {"accuracy": results["test_accuracy"], "epochs": results["epoch"], "seconds": seconds}


def table(runs: DataFrame, seeds: int) -> str:
    """One row for each data set and choice of options."""
    by = ["data", "options"]
    check_runs(runs, by, seeds)
    rows = [
        [
            *group,
            str(len(of)),
            spread(of, "accuracy", 100),
            *(spread(of, one, digits=0) for one in ("epochs", "seconds")),
        ]
        for group, of in runs.groupby(by)
    ]
    return markdown([*by, "seeds", "test accuracy, %", "epochs", "seconds"], rows)


def image_folders(source: Path, folder: Path, split: str) -> Path:
    """Save the first images of each of the first classes as a folder of class folders."""
    table = Dataset.from_parquet(str(source / f"{split}.parquet"))
    column = next(name for name, feature in table.features.items() if isinstance(feature, Image) or name == "image")
    table, counts = table.cast_column(column, Image(decode=False)), {}
    for row in table.shuffle(seed=0):
        label = row["label"]
        counts[label] = counts.get(label, 0) + 1
        if label < CLASSES and counts[label] <= IMAGES // CLASSES:
            file = folder / split / str(label) / f"{counts[label]}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(row[column]["bytes"])
    return folder / split


def csv_file(source: Path, folder: Path, split: str) -> Path:
    """Save a random sample of sentences as a csv file."""
    table = Dataset.from_parquet(str(source / f"{split}.parquet")).shuffle(seed=0)
    table = table.select(range(min(TEXTS, len(table))))
    if isinstance(table.features["label"], ClassLabel):
        table = table.add_column("name", table.features["label"].int2str(table["label"][:]))
        table = table.remove_columns("label").rename_column("name", "label")
    table.to_csv(str(folder / f"{split}.csv"))
    return folder / f"{split}.csv"


if __name__ == "__main__":
    main()
