"""`hf-bidir`: one thin sub-command per capability; none imports torch before it runs."""

import os

# Threads of GNU OpenMP spin while they wait for each other. On cores that other programs use, a step then takes
# several times as long (benchmarks/results/waiting_threads.md). OpenMP reads this when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from hf_bidir.cli import checkpoints, deploy, explain, orient, hub, models, demo, doctor  # noqa: F401, I001  (imported in the order of --help)
from hf_bidir.cli.app import app

__all__ = ["app"]
