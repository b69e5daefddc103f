"""What does converting a checkpoint of the shape of BERT-base cost in time and memory?

    python benchmarks/conversion.py

Each repeat is a new process, interleaved: `convert_checkpoint`, and for comparison loading and saving the stock model.
Seconds are medians without imports; memory is the peak growth of the process relative to the checkpoint's size.
The table goes to benchmarks/results/conversion.md.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import BertConfig, BertForMaskedLM
from transformers.utils import logging

from benchmarks.measure import RESULTS, ROOT, write_table

CHILD = """
import json, sys, time
from benchmarks.measure import peak_memory
from transformers import BertForMaskedLM
from hf_bidir import convert_checkpoint

name, source, target = sys.argv[1:]

def task():
    if name == "convert":
        convert_checkpoint(source, target)
    else:
        BertForMaskedLM.from_pretrained(source).save_pretrained(target)

start = time.perf_counter()
grown = peak_memory(task, "cpu")
print(json.dumps({"seconds": time.perf_counter() - start, "bytes": grown * 2**20}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS / "conversion.md")
    options = parser.parse_args()
    logging.set_verbosity_error()
    tasks = {"convert": "convert_checkpoint, λ = 0", "copy": "from_pretrained, save_pretrained"}
    measured = {task: [] for task in tasks}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "bert-base")
        BertForMaskedLM(BertConfig()).save_pretrained(source)
        size = (source / "model.safetensors").stat().st_size
        for repeat in range(options.repeats):
            for task, runs in measured.items():
                runs.append(run_alone(task, source, Path(folder, f"{task}-{repeat}")))
    medians = {
        task: {key: statistics.median(run[key] for run in runs) for key in ("seconds", "bytes")}
        for task, runs in measured.items()
    }
    rows = [
        [
            tasks[task],
            f"{median['seconds']:.1f}",
            f"{median['seconds'] / medians['copy']['seconds']:.2f}",
            f"{median['bytes'] / size:.2f}",
        ]
        for task, median in medians.items()
    ]
    notes = f"A BertForMaskedLM of the shape of BERT-base, {size / 2**20:.0f} MiB; {options.repeats} repeats."
    header = ["", "seconds", "relative to a copy", "memory / checkpoint size"]
    write_table(options.output, "Converting BERT-base", notes, header, rows, "cpu")


def run_alone(task: str, source: Path, target: Path) -> dict[str, float]:
    """One task in a new process: seconds, and peak growth in bytes."""
    words = [sys.executable, "-c", CHILD, task, str(source), str(target)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT)
    shutil.rmtree(target)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
