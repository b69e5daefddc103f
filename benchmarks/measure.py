"""Measurements on a noisy machine: interleaved runs, medians, ratios, and the name of the machine."""

import argparse
import ctypes
import gc
import os
import platform
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm

from benchmarks.runs import DATA, VERSIONS, add_runs, has_run, markdown
from hf_bidir.common.files import read_json, replacing, sha256

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
KEEP_LAST = {"eval_strategy": "no", "save_strategy": "no"}  # options of a run whose last checkpoint counts


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def elapsed(task: Callable[[], object]) -> float:
    """Seconds until the task is done, on a GPU too."""
    start = time.perf_counter()
    task()
    synchronize()
    return time.perf_counter() - start


def interleaved_medians(
    tasks: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int = 3,
    seconds_of: Callable[[Callable[[], object]], float] = elapsed,
) -> dict[str, float]:
    """Median seconds of each task; tasks are interleaved, so slow phases of the machine affect all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for round_number in tqdm(range(warm_up + repeats), leave=False, unit="round"):
        for name, task in tasks.items():
            duration = seconds_of(task)
            if round_number >= warm_up:
                seconds[name].append(duration)
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_memory(task: Callable[[], None], device: str) -> float | None:
    """Peak growth of memory on the device during the task in MiB; None if unknown."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        task()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    if not Path("/proc/self/clear_refs").exists():
        return None
    # otherwise memory freed by an earlier task would still belong to the process and hide the growth
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    task()
    return (_status("VmHWM") - before) / 2**10


def command_line(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows the docstring of a script as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def recipe(name: str) -> dict[str, Any]:
    """The options in training/recipes/NAME.yaml."""
    from hf_bidir.cli.script import read_recipe

    return read_recipe(ROOT / f"training/recipes/{name}.yaml")


def options_of(document: str, name: str, on_device: bool = False, **options: object) -> argparse.Namespace:
    """The parsed options of a benchmark: `options` with their default or fields of `add_argument`, and --output.

    Args:
        document: the docstring of the benchmark, its help.
        name: of the table, results/NAME.md, on a GPU results/NAME-gpu.md.
        on_device: whether the options have a device and a dtype.
    """
    parser = command_line(document)
    for option, default in options.items():
        fields = default if isinstance(default, dict) else {"type": type(default), "default": default}
        parser.add_argument(f"--{option.replace('_', '-')}", **fields)
    if on_device:
        parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: bfloat16 on a GPU, else float32")
    parser.add_argument("--output", type=Path, help=f"default: results/{name}{'[-gpu]' * on_device}.md")
    parsed = parser.parse_args()
    gpu = on_device and parsed.device == "cuda"
    if on_device:
        parsed.dtype = parsed.dtype or ("bfloat16" if gpu else "float32")
    parsed.output = parsed.output or RESULTS / f"{name}{'-gpu' * gpu}.md"
    return parsed


def machine(device: str) -> str:
    """One line with the processor or GPU, threads and versions."""
    if device == "cuda":
        name = torch.cuda.get_device_name()
    else:
        from hf_bidir.finetune.record import cpu_model

        name = f"{cpu_model()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{name}; {versions}, Python {platform.python_version()}"


def train_once(main: Callable[[dict[str, Any]], object], options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The results of a run in `folder`, which a script's `main` trains unless it is finished."""
    from hf_bidir.finetune.record import RESULTS as TRAINED
    from hf_bidir.finetune.record import is_finished

    if not is_finished(folder):
        main({**options, "output_dir": folder, "disable_tqdm": True})
    return read_json(folder / TRAINED)


def run_grid(
    file: Path,
    trials: Iterable[Mapping[str, Any]],
    run: Callable[..., tuple[Mapping[str, Any] | list[Mapping[str, Any]], Iterable[Path]]],
    key: Sequence[str] = (),
) -> None:
    """Run every trial that has no row, and save its rows at once, so that an interrupted grid resumes.

    Args:
        file: the csv file.
        trials: the columns that identify a run and their values, "seed" among them; they may depend on earlier rows.
        run: takes a trial; returns the numbers of one row, or of several, and the data files that it read.
        key: the columns that identify a row; by default those of a trial.
    """
    from hf_bidir.finetune.record import library_versions

    libraries = library_versions()
    versions = ", ".join(f"{name} {libraries[name].partition('+')[0]}" for name in ("torch", "transformers"))
    for trial in tqdm(trials, unit="run"):
        if has_run(file, **trial):
            continue
        numbers, data = run(**trial)
        same = {VERSIONS: versions}
        if hashes := [sha256(read)[:8] for read in data]:
            same[DATA] = f"sha256:{','.join(hashes)}"
        rows = [{**trial, **row, **same} for row in (numbers if isinstance(numbers, list) else [numbers])]
        add_runs(file, rows, key or list(trial))


def write_table(path: Path, title: str, notes: str, header: list[str], rows: list[list[str]], device: str) -> None:
    """Print a Markdown table and save it to `path`, with the machine and the command."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]  # without folders of this machine
    module = sys.modules["__main__"].__spec__  # of python -m
    program = ["-m", module.name] if module else [f"benchmarks/{Path(sys.argv[0]).name}"]
    command = shlex.join(["python", *program, *words])
    text = f"# {title}\n\n{machine(device)}\n\n{notes} Command: `{command}`.\n\n" + markdown(header, rows) + "\n"
    print(text)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"saved: {path}")


def _status(field: str) -> int:
    """A field of /proc/self/status, in KiB."""
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text()).group(1))
