"""Programs in Python processes of their own."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import forks

# To be the `subprocess` of hf_bidir.hub.isolated, whose process then starts where transformers has been imported.
SOON = SimpleNamespace(
    run=lambda command, **options: subprocess.run([forks.prepare(ready=True), *command[1:]], **options),
    TimeoutExpired=subprocess.TimeoutExpired,
)


def run_python(
    program: str,
    *arguments: Any,
    isolated: bool = False,
    fresh: bool = False,
    cwd: Path | None = None,
    **environment: str,
) -> str:
    """What a program prints; it must succeed.

    `isolated`: without this repository and what PYTHONPATH names. transformers has been imported there, and is offline,
    unless the process is to be `fresh`.
    """
    python = sys.executable if fresh else forks.prepare(ready=True)
    command = [python, *(["-I"] if isolated else []), "-c", program, *map(str, arguments)]
    environment = os.environ | environment
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def locking(folder: Path) -> Iterator[multiprocessing.Process]:
    """Another process that has locked an output folder; it is killed at the end."""
    processes = multiprocessing.get_context("fork")
    ready = processes.Event()

    def lock() -> None:
        from hf_bidir.finetune.output_folder import locked

        with locked(folder):
            ready.set()
            time.sleep(300)

    process = processes.Process(target=lock)
    process.start()
    try:
        assert ready.wait(60)
        yield process
    finally:
        process.kill()
        process.join()
