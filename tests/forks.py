"""A Python interpreter that starts in a tenth of the time: its processes are forks of one that has imported libraries.

    python [-I] [-u] (-c CODE | -m MODULE | FILE) ARGUMENTS

is, with the path of `prepare()` as `python`, a process with the environment, folder, input and output of the caller, as
otherwise, but PyTorch and what transformers imports besides are there already (`LIBRARIES`): nothing of Hugging Face,
which reads its settings from the environment on import, and never hf_bidir. `prepare(ready=True)` is one in which
transformers is there as well, without network; it takes only HF_MODULES_CACHE from the environment.

The script at that path starts the server on first use; all processes of a test run share it, and it ends with them.
Tests of what is imported when, or of isolation itself, start `sys.executable` instead.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

LIBRARIES = (
    "torch", "torch._dynamo", "torchvision", "torchao.quantization", "scipy.optimize", "scipy.stats", "sklearn.metrics",
    "pandas",
)  # fmt: skip
READY = (
    "transformers.modeling_utils", "transformers.pipelines", "transformers.trainer", "transformers.models.auto",
    "transformers.models.bert.modeling_bert", "peft",
)  # fmt: skip
FOLDER = "FORKS_OF_THIS_TEST_RUN"  # the name of an environment variable


def prepare(ready: bool = False) -> str:
    """The path of the interpreter."""
    if not hasattr(os, "pidfd_open"):  # of Linux
        return sys.executable
    if FOLDER not in os.environ:  # the first process of the test run; its workers inherit the variable
        folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="forks-")
        with open(os.path.join(folder, "environment.json"), "w") as file:
            json.dump({"owner": os.getpid(), "environment": dict(os.environ)}, file)
        for name in ("python", "ready"):
            with open(os.path.join(folder, name), "w") as file:
                code = (
                    f"import sys\nsys.path.insert(0, {os.path.dirname(__file__)!r})\nimport forks\nforks.ask({name!r}, "
                )
                file.write(f"#!{sys.executable} -IS\n{code}{folder!r}, {sys.executable!r})\n")
            os.chmod(file.name, 0o700)
    return os.path.join(os.environ[FOLDER], "ready" if ready else "python")


def remove() -> None:
    """Remove the folder; a server that was started in it ends within a second of the process that called `prepare`."""
    if FOLDER in os.environ:
        shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)


def ask(name: str, folder: str, python: str) -> None:
    """Have the server run a process with the arguments, environment, folder and files of this one; leave as it does."""
    with _connection(name, folder, python) as server:
        request = {"words": sys.argv[1:], "environment": dict(os.environ), "cwd": os.getcwd()}
        socket.send_fds(server, [b"x"], [0, 1, 2])
        server.sendall(json.dumps(request).encode() + b"\n")
        status = server.recv(16)
    if not status:
        sys.exit("the server of forks has ended")
    os._exit(int(status))


def _connection(name: str, folder: str, python: str) -> socket.socket:
    path = os.path.join(folder, f"{name}.socket")
    connection = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        connection.connect(path)
        return connection
    import fcntl  # of Unix

    with open(os.path.join(folder, f"{name}.lock"), "w") as lock:  # one starts the server, the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(os.path.join(folder, "environment.json")) as file:
            known = json.load(file)
        parent = os.path.join(folder, "python") if name == "ready" else python
        modules = READY if name == "ready" else LIBRARIES
        environment = known["environment"] | ({"HF_HUB_OFFLINE": "1"} if name == "ready" else {})
        server = None
        while True:
            try:
                connection.connect(path)
                return connection
            except OSError:
                if server is None:
                    command = [parent, "-I", os.path.abspath(__file__), path, str(known["owner"]), *modules]
                    with open(os.path.join(folder, f"{name}.log"), "w") as log:
                        pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                        server = subprocess.Popen(command, env=environment, cwd=folder, start_new_session=True, **pipes)
                if server.poll() is not None:
                    with open(log.name) as file:
                        sys.exit(f"the server of forks did not start:\n{file.read()}")
                time.sleep(0.02)


def serve(path: str, owner: int, modules: list[str]) -> dict | None:
    """Fork for each request. The server returns None once the owner is gone; a fork returns its request."""
    for name in modules:
        with contextlib.suppress(ImportError):  # of an optional one
            __import__(name)
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are not waited for
    while _lives(owner):
        if not select.select([listener], [], [], 1)[0]:
            continue
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            if (request := _supervise(connection)) is not None:
                return request
        connection.close()
    return None


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _supervise(connection: socket.socket) -> dict | None:
    """Fork the process, which returns its request; tell the client its exit status, or end it when the client ends."""
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as stream:
        request = json.loads(stream.readline())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        return request
    for file in files:
        os.close(file)
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(b"%d" % (code if code >= 0 else 128 - code))
    os._exit(0)


def leave(program: Callable[..., None], **arguments: Any) -> None:
    """Run the program and end the process as Python would, without taking a thousand imported files down one by one."""
    status: Any = 0
    try:
        program(**arguments)
    except SystemExit as ended:
        status = ended.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(words: list[str], environment: dict[str, str], cwd: str) -> None:
    """What Python does with its arguments."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if "transformers" in sys.modules and (cache := environment.get("HF_MODULES_CACHE")):
        for name in ("transformers.utils", "transformers.utils.hub", "transformers.dynamic_module_utils"):
            sys.modules[name].HF_MODULES_CACHE = cache
    isolated = False
    while words[0] in ("-I", "-u"):
        isolated = isolated or words[0] == "-I"
        if words[0] == "-u":
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        words = words[1:]
    kind = words[0] if words[0] in ("-c", "-m") else None
    if not isolated:
        first = "" if kind == "-c" else cwd if kind == "-m" else os.path.dirname(os.path.abspath(words[0]))
        sys.path[:0] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    if kind == "-m":
        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    if kind == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        code = compile(words[1], "<string>", "exec")
    else:
        sys.argv[:] = words
        main.__file__ = words[0]
        with open(words[0], "rb") as file:
            code = compile(file.read(), words[0], "exec")
    exec(code, main.__dict__)


if __name__ == "__main__":
    _request = serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    if _request is None:
        shutil.rmtree(os.path.dirname(sys.argv[1]), ignore_errors=True)
    else:
        leave(run, **_request)
