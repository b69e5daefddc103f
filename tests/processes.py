"""Programs in Python processes of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_python(
    program: str, *arguments: Any, isolated: bool = False, cwd: Path | None = None, **environment: str
) -> str:
    """What a program prints; it must succeed. `isolated`: without this repository and what PYTHONPATH names."""
    command = [sys.executable, *(["-I"] if isolated else []), "-c", program, *map(str, arguments)]
    environment = os.environ | environment
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
