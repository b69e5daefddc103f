"""What a command or script sets before it imports torch and transformers, by importing this file first.

Deprecations in the code of libraries are not printed, because the user of a command cannot change that code. For
example, transformers imports torchao where it is installed, and torch 2.14 logs a deprecation about torchao 0.18.

Threads of GNU OpenMP spin while they wait for each other; here they sleep sooner. On cores that other programs use, a
step otherwise takes longer.
"""

import logging
import os
import sys
import warnings

warnings.filterwarnings("ignore", category=FutureWarning)
logging.getLogger("torch.utils._pytree").addFilter(lambda record: "is deprecated" not in record.msg)
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def announce_imports() -> None:
    """Say on a terminal what takes the next seconds."""
    if sys.stderr.isatty():
        print("importing torch and transformers …", file=sys.stderr)
