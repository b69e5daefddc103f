"""Programs in Python processes of their own: fresh ones, and quick ones in which transformers has been imported."""

import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TOGETHER = """
import os, runpy, sys

del sys.argv[0]
for rank in "01":
    if os.fork() == 0:
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in "01"))
"""
WARM = multiprocessing.get_context("forkserver")
WARM.set_forkserver_preload(
    ["transformers.trainer", "transformers.pipelines", "transformers.models.bert.modeling_bert", "peft", "pandas"]
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
    command = [sys.executable, *(["-I"] if isolated else []), "-c", program, *map(str, arguments)]
    options: dict[str, Any] = {"env": os.environ | environment, "cwd": cwd, "timeout": 300}
    if fresh:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    else:
        done = run_warm(command, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def together(*script: Any) -> None:
    """Run a script in two processes as torchrun does, which find each other through gloo."""
    with socket.create_server(("localhost", 0)) as server:
        port = str(server.getsockname()[1])
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    run_python(TOGETHER, *script, **place, CUDA_VISIBLE_DEVICES="", PYTHONPATH=str(ROOT))


def run_warm(
    command: list, env: dict[str, str], cwd: Any, timeout: float, check: bool = False, **_: Any
) -> subprocess.CompletedProcess:
    """`subprocess.run` of Python with a program, by the fork of a process that has imported transformers.

    That process has no network. Of the environment, the libraries that are there already see HF_MODULES_CACHE alone.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        multiprocessing.forkserver.ensure_running()
    with tempfile.TemporaryDirectory() as scratch:
        process = WARM.Process(target=_run, args=(list(map(str, command[1:])), env, cwd or os.getcwd(), scratch))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(command, timeout)
        done = process.exitcode, *(Path(scratch, name).read_text() for name in ("stdout", "stderr"))
    if check and process.exitcode:
        raise subprocess.CalledProcessError(done[0], command, *done[1:])
    return subprocess.CompletedProcess(command, *done)


# to be the `subprocess` of hf_bidir.hub.isolated
SUBPROCESS = SimpleNamespace(
    run=run_warm, TimeoutExpired=subprocess.TimeoutExpired, CalledProcessError=subprocess.CalledProcessError
)


def _run(words: list[str], environment: dict[str, str], cwd: str, scratch: str) -> None:
    """What Python does with `[-I] (-c CODE | FILE) ARGUMENTS`; its output goes to files."""
    for number, name in enumerate(("stdout", "stderr"), start=1):
        os.dup2(os.open(Path(scratch, name), os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if cache := environment.get("HF_MODULES_CACHE"):
        for name in ("transformers.utils", "transformers.utils.hub", "transformers.dynamic_module_utils"):
            sys.modules[name].HF_MODULES_CACHE = cache
    sys.path[:] = [path for path in sys.path if path and Path(path) != ROOT]
    if words[0] == "-I":
        words = words[1:]
    else:
        sys.path[:0] = ["", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    if words[0] == "-c":
        program = Path(scratch, "program.py")
        program.write_text(words[1], encoding="utf-8")
        words = [str(program), *words[2:]]
    sys.argv[:] = words
    runpy.run_path(words[0], run_name="__main__")
