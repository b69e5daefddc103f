"""`hf-bidir`: one thin sub-command per capability; none imports torch before it runs."""

import logging
import os
import warnings

# Threads of GNU OpenMP spin while they wait for each other. On cores that other programs use, a step then takes
# several times as long (benchmarks/waiting_threads.py). OpenMP reads this when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# Deprecations in the code of libraries, which the user of a command cannot change. transformers imports torchao wherever
# it is installed, and torch 2.14 logs one about torchao 0.18 on every import.
warnings.filterwarnings("ignore", category=FutureWarning)
logging.getLogger("torch.utils._pytree").addFilter(lambda record: "is deprecated" not in record.msg)

from hf_bidir.cli import checkpoints, deploy, explain, orient, hub, models, experiments, doctor  # noqa: F401, I001  (imported in the order of --help)
from hf_bidir.cli.app import app

__all__ = ["app"]
