"""Accuracy of a new model on a small data set with the default options, beside three epochs, the former default.

Prints the committed table of results/defaults.md.

examples:
  python benchmarks/defaults.py --cifar10 cifar10_jpeg/ --sst2 sst2/ --work runs/defaults
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from datasets import ClassLabel, Dataset, Image

from hf_bidir.finetune.record import cpu_model

CLASSES = 6
IMAGES, TEXTS = 2000, 2000
FIXED = {"3 epochs": ["--num_train_epochs", "3", "--lr_scheduler_type", "linear", "--warmup_ratio", "0.1"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path, required=True, help="folder with train.parquet and test.parquet")
    parser.add_argument("--sst2", type=Path, required=True, help="folder with train.parquet and test.parquet")
    parser.add_argument("--work", type=Path, required=True, help="folder for the data and the runs")
    options = parser.parse_args()
    photographs = [image_folders(options.cifar10, options.work / "photos", split) for split in ("train", "test")]
    texts = [csv_file(options.sst2, options.work, split) for split in ("train", "test")]
    tasks = {
        f"{IMAGES} photographs, {CLASSES} classes": (
            ["training/image_classification.py", "--image_size", "32", "--patch_size", "4"],
            photographs,
        ),
        f"{TEXTS} sentences, 2 classes": (["training/text_classification.py"], texts),
    }
    print(f"CPU: {cpu_model()}\n")
    print("| data | options | test accuracy | epochs | seconds |\n|---|---|---|---|---|")
    for data, (command, (train, test)) in tasks.items():
        for name, extra in (FIXED | {"default": []}).items():
            folder = options.work / f"{Path(command[0]).stem}-{name.replace(' ', '-')}"
            started = time.monotonic()
            files = ["--train_file", str(train), "--test_file", str(test), "--output_dir", str(folder)]
            subprocess.run(
                [sys.executable, *command, *files, *extra, "--use_cpu", "--disable_tqdm", "true"],
                check=True,
                stdout=sys.stderr,
            )
            results = json.loads((folder / "all_results.json").read_text(encoding="utf-8"))
            accuracy, epochs = results["test_accuracy"], results["epoch"]
            print(f"| {data} | {name} | {accuracy:.3f} | {epochs:.0f} | {time.monotonic() - started:.0f} |", flush=True)


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
