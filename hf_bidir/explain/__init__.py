"""Signed token scores of a model's predictions, and figures of them.

`explain` explains a prediction in one call; `token_scores` computes one number per token by any method of `METHODS`,
and each method is also a function of its own. No score depends on the arbitrary signs of TanhMax heads.

Each name is imported on first use from where `__init__.pyi` has it, so that each use loads what it needs.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from hf_bidir.common.extras import extra

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOMES = {name: module for module, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.MULTILINE)}
__all__ = sorted(_HOMES)  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra("explain"):
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
