"""Explanations as JSON, and back; docs/explanations.md has the schema."""

import json
import os
from datetime import date
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from .alignment import Alignment
from .coefficients import Coefficients  # noqa: F401 (in a type hint)
from .inputs.text import Example, shortened
from .result import Explanation, Result
from .verdict import Verdict

SCHEMA = 1
KINDS = {"Explanation": Explanation, "Alignment": Alignment}
OF_EXAMPLE = ("text", "texts", "tokens", "places", "special", "template", "grid", "file", "of_segments")
DERIVED = {Explanation: ("unit", "reading"), Verdict: ("headline", "sentence")}  # properties for readers of the JSON
NOT_STORED: dict[str, Any] = {"inputs": {}, "token_of_piece": []}  # of an example


def written(result: Result) -> str:
    """An `Explanation` or `Alignment` as JSON."""
    content = {"schema": SCHEMA, "kind": type(result).__name__} | _plain(result)
    return json.dumps(content, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A tensor, a date or a dataclass as JSON has it."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, date):
        return value.isoformat()
    names = OF_EXAMPLE if isinstance(value, Example) else [*vars(value), *DERIVED.get(type(value), ())]
    return {name: getattr(value, name) for name in names}


def read(source: str | Path) -> Any:
    """What was written; the arguments and errors are those of `Result.from_json`."""
    text = str(source)
    try:
        content = json.loads(Path(text).read_text(encoding="utf-8") if os.path.isfile(text) else text)
        return _read({SCHEMA: KINDS}[content["schema"]][content["kind"]], content)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"expected an explanation with schema {SCHEMA}, as to_json writes it, or the path of its file; got "
            f"{shortened(text)!r}."
        ) from error


def _read(hint: Any, value: Any) -> Any:
    """What was written of a value with this type hint."""
    inside = get_args(hint)
    if isinstance(hint, UnionType):  # with None
        return None if value is None else _read(inside[0], value)
    if hint is Tensor:
        return torch.tensor(value)
    if hint is date:
        return date.fromisoformat(value)
    if hasattr(hint, "__dataclass_fields__"):
        hints = get_type_hints(hint, localns=globals())
        content = NOT_STORED | value
        return hint(**{name: _read(inner, content[name]) for name, inner in hints.items() if name in content})
    if isinstance(value, dict):
        return {name: _read(inside[-1], each) for name, each in value.items()}
    return value
