"""How should the threads of a small model wait for each other, on idle cores and beside a busy one?

By default, threads of GNU OpenMP spin for a while before they sleep. `hf_bidir/cli` shortens that by GOMP_SPINCOUNT.

    python benchmarks/waiting_threads.py

A BERT of four layers takes training steps with two threads, in a process of its own for each setting, because OpenMP
reads its settings when it is loaded. The busy core runs an endless loop. Rounds of all settings alternate.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.measure import write_table
from benchmarks.threads import LAYERS, text_model, training_step

SETTINGS = ("default", "0", "1000", "10000", "100000")
WIDTH, WARM_UP = 128, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of steps in each process")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "waiting_threads.md")
    options = parser.parse_args()
    if options.child:
        print(median_step(options.seconds))
        return
    found: dict[tuple[str, bool], list[float]] = {(one, busy): [] for busy in (False, True) for one in SETTINGS}
    for busy in (False, True):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
        try:
            for _ in tqdm(range(options.rounds), desc="busy" if busy else "idle", unit="round"):
                for setting in SETTINGS:
                    found[setting, busy].append(child_median(setting, options.seconds))
        finally:
            if other:
                other.kill()
    medians = {key: statistics.median(values) for key, values in found.items()}
    base = medians["default", False]
    rows = [[one, *(f"{medians[one, busy] / base:.2f}" for busy in (False, True))] for one in SETTINGS]
    notes = (
        f"Steps of a BERT with {LAYERS} layers of width {WIDTH}, two threads; medians over {options.rounds} rounds of "
        "the median step, as ratios to the default on idle cores."
    )
    header = ["GOMP_SPINCOUNT", "idle cores", "one core busy"]
    write_table(options.output, "Threads that wait for each other", notes, header, rows, "cpu")


def child_median(setting: str, seconds: float) -> float:
    """The median step in a process with this setting."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    environment |= {} if setting == "default" else {"GOMP_SPINCOUNT": setting}
    command = [sys.executable, __file__, "--child", "--seconds", str(seconds)]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return float(printed.split()[-1])


def median_step(seconds: float) -> float:
    torch.set_num_threads(2)
    shape = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "intermediate_size": 4 * WIDTH,
    }
    step = training_step(*text_model(shape))
    for _ in range(WARM_UP):
        step()
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
