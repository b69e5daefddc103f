"""What a process of ours sets before it imports torch and transformers; importing this file does it.

Deprecations in the code of libraries, which the user of a command cannot change, are not printed: wherever torchao is
installed, transformers imports it, and torch 2.14 logs one about torchao 0.18. Threads of GNU OpenMP, which spin while
they wait for each other, sleep sooner: on cores that other programs use, a step otherwise takes several times as long
(benchmarks/results/waiting_threads.md).
"""

import logging
import os
import warnings

warnings.filterwarnings("ignore", category=FutureWarning)
logging.getLogger("torch.utils._pytree").addFilter(lambda record: "is deprecated" not in record.msg)
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
