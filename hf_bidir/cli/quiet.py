"""Settings of the process of a command or script, made by importing this file before torch and transformers.

Deprecations in the code of libraries are not printed, because the user of a command cannot change that code. For
example, transformers imports torchao where it is installed, and torch 2.14 logs a deprecation about torchao 0.18.

Threads of GNU OpenMP spin while they wait for each other; here they sleep sooner. On cores that other programs use, a
step otherwise takes several times as long (benchmarks/results/waiting_threads.md).
"""

import logging
import os
import warnings

warnings.filterwarnings("ignore", category=FutureWarning)
logging.getLogger("torch.utils._pytree").addFilter(lambda record: "is deprecated" not in record.msg)
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
