"""How long do building a model card and staging a checkpoint for the Hub take?

    python benchmarks/model_card.py runs/checkpoints/digits-tanhmax runs/checkpoints/sst2-minilm-tanhmax

Medians over --repeats, folders and tasks interleaved; the baseline is reading and hashing the folder's weights, which a
"verified" card requires. The table goes to benchmarks/results/model_card.md.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

from transformers.utils import logging

from benchmarks.measure import RESULTS, interleaved_medians, write_table
from hf_bidir.hub import build_model_card
from hf_bidir.hub.files import digests
from hf_bidir.hub.push import stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="finished runs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS / "model_card.md")
    options = parser.parse_args()
    logging.set_verbosity_error()
    tasks = {}
    for folder in options.folders:
        tasks[folder.name, "hash"] = partial(digests, folder)
        tasks[folder.name, "card"] = partial(build_model_card, folder)
        tasks[folder.name, "stage"] = partial(staged, folder)
    seconds = interleaved_medians(tasks, options.repeats, warm_up=1)
    rows = []
    for folder in options.folders:
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 2**20
        hash_, card, stage_ = (seconds[folder.name, task] for task in ("hash", "card", "stage"))
        rows.append([folder.name, f"{size:.1f}", f"{card:.2f} s", f"{card / hash_:.1f}", f"{stage_:.1f} s"])
    header = ["run", "weights, MiB", "build_model_card", "over hashing alone", "stage (card, checks, run alone)"]
    notes = "Medians on one noisy machine; compare the ratios."
    write_table(options.output, "Cost of a model card", notes, header, rows, "cpu")


def staged(folder: Path) -> None:
    """The work of `hf-bidir push --dry-run`."""
    with tempfile.TemporaryDirectory() as scratch:
        stage(folder, Path(scratch, folder.name), "me/mine")


if __name__ == "__main__":
    main()
