"""Processes that start soon are like those of Python itself, but for what has been imported."""

import os
import subprocess
import sys
import time

import pytest

from tests import forks

ECHO = """
import os, sys
print(sys.argv, sys.stdin.read(), os.getcwd(), os.environ["ASKED"])
print(sorted(set(sys.modules) & {"torch", "transformers", "huggingface_hub", "hf_bidir"}), file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize(("ready", "known"), [(False, ["torch"]), (True, ["huggingface_hub", "torch", "transformers"])])
def test_arguments_input_folder_environment_output_and_status_are_those_of_the_caller(ready, known, tmp_path):
    options = {"cwd": tmp_path, "env": os.environ | {"ASKED": "yes"}, "text": True, "check": False}
    done = subprocess.run([forks.prepare(ready), "-c", ECHO, "a", "b c"], input="in", capture_output=True, **options)
    assert (done.returncode, done.stdout) == (3, f"['-c', 'a', 'b c'] in {tmp_path} yes\n")
    assert done.stderr == (f"{known}\n" if forks.prepare() != sys.executable else "[]\n")


def test_an_error_is_a_traceback_and_status_1():
    done = subprocess.run([forks.prepare(), "-c", "1 / 0"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")


def test_a_process_ends_with_its_caller():
    command = [forks.prepare(), "-u", "-c", "import os, time; print(os.getpid()); time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        process = int(started.stdout.readline())
        started.kill()
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("it goes on")
