"""A user of a Hub on loopback, whose process runs one command of hf-bidir after the other: imports take seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The client's own settings for the pause between two attempts; it has no environment variable for them.
QUICK = """
from huggingface_hub.utils import _http
_http.http_backoff.__kwdefaults__.update(base_wait_time=0.01, max_wait_time=0.01)
"""
RUN = f"""{QUICK}
import io, json, os, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
from hf_bidir.cli import app
for line in sys.stdin:
    words, environment = json.loads(line)
    os.environ.update(environment)
    stdout, stderr, code = io.StringIO(), io.StringIO(), 1
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            app(words)
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
    print(json.dumps([code, stdout.getvalue(), stderr.getvalue()]), flush=True)
"""


def start(hub, code, *words, home, token="hf_alice", **settings):
    """A fresh process of a user, with a home folder and a cache of its own, that runs Python code."""
    environment = os.environ | {
        "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    } | settings  # fmt: skip
    command = [sys.executable, "-c", code, *map(str, words)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=environment, cwd=home.parent, text=True, **pipes)


def ended(process):
    """The process when it is done, with what it said."""
    stdout, stderr = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


class User:
    """Runs commands of hf-bidir in one process."""

    def __init__(self, hub, home):
        self.process = start(hub, RUN, home=home)

    def begin(self, *words, **environment):
        """Start a command; `done` waits for it."""
        self.process.stdin.write(json.dumps([list(map(str, words)), environment]) + "\n")
        self.process.stdin.flush()

    def done(self):
        """The exit code and the output of the command that was started."""
        if not (line := self.process.stdout.readline()):
            return ended(self.process)
        return subprocess.CompletedProcess(RUN, *json.loads(line))

    def run(self, *words, **environment):
        self.begin(*words, **environment)
        return self.done()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
