"""A user of the Hub in hub_server.py: one process that runs commands of hf-bidir one after the other."""

import json
import os
import subprocess
from pathlib import Path

from tests import forks

# Without pauses between the client's attempts. Most pushes are of a folder that this user has pushed before, and what
# it computes in a clean process stays the same.
RUN = """
import functools, json, sys
from huggingface_hub.utils import _http
from typer.testing import CliRunner
from hf_bidir.cli import app
from hf_bidir.hub import isolated, push
from tests.processes import SOON
isolated.subprocess = SOON
_http.http_backoff.__kwdefaults__.update(base_wait_time=0.01, max_wait_time=0.01)
computed, compute = {}, push.isolated_forward
def isolated_forward(folder, auto, inputs):
    key = push.Staged(folder).content, auto
    if key not in computed:
        computed[key] = compute(folder, auto, inputs)
    return computed[key]
push.isolated_forward = isolated_forward
for line in sys.stdin:
    words, environment = json.loads(line)
    done = CliRunner().invoke(app, words, env=environment)
    print(json.dumps([done.exit_code, done.stdout, done.stderr]), flush=True)
"""


def start(hub, code, *words, home, token="hf_alice"):
    """A new process of a user, with a home folder and a cache of its own, that runs Python code."""
    environment = os.environ | {
        "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(Path(__file__).parents[1]),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }  # fmt: skip
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [forks.prepare(), "-c", code, *map(str, words)]
    return subprocess.Popen(command, env=environment, cwd=home.parent, text=True, **pipes)


class User:
    """Runs commands of hf-bidir in one process, for the duration of a `with`."""

    def __init__(self, hub, home):
        self.process = start(hub, RUN, home=home)

    def run(self, *words, **environment):
        """The exit code and the output of a command."""
        self.process.stdin.write(json.dumps([list(map(str, words)), environment]) + "\n")
        self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(self.process.communicate()[1])
        return subprocess.CompletedProcess(words, *json.loads(line))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
