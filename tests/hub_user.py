"""A user of a Hub on loopback, whose process runs one command of hf-bidir after the other: imports take seconds."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The client's own settings for the pause between two attempts; it has no environment variable for them.
QUICK = """
from huggingface_hub.utils import _http
_http.http_backoff.__kwdefaults__.update(base_wait_time=0.01, max_wait_time=0.01)
"""
# Output is caught below Python, where log handlers write that were made before.
RUN = f"""{QUICK}
import json, os, sys, tempfile, traceback
answers = os.fdopen(os.dup(1), "w")
from hf_bidir.cli import app
from hf_bidir.hub import staging
# Most pushes are of a folder that this user has pushed before; what it computes in a clean process stays the same.
computed, compute = {{}}, staging.isolated_forward
def isolated_forward(folder, auto, inputs):
    key = staging.Staged(folder).content, auto
    if key not in computed:
        computed[key] = compute(folder, auto, inputs)
    return computed[key]
staging.isolated_forward = isolated_forward
for line in sys.stdin:
    words, environment = json.loads(line)
    os.environ.update(environment)
    code, caught = 1, [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
    for number, file in enumerate(caught, start=1):
        os.dup2(file.fileno(), number)
    try:
        app(words)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush(), sys.stderr.flush()
    texts = [os.pread(file.fileno(), 1 << 30, 0).decode() for file in caught]
    print(json.dumps([code, *texts]), file=answers, flush=True)
"""
TIMEOUT = 300  # seconds


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
    stdout, stderr = process.communicate(timeout=TIMEOUT)
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
        """The exit code and the output of the command that was started, or of the process if it has ended."""
        if not select.select([self.process.stdout], [], [], TIMEOUT)[0]:
            self.process.kill()
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
