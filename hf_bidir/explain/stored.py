"""Explanations as JSON, and back; docs/explanations.md has the schema."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_bidir.explain.coefficients import Coefficients
from hf_bidir.explain.inputs.text import Example, shortened
from hf_bidir.explain.readout import Prediction
from hf_bidir.explain.result import Explanation, Result
from hf_bidir.explain.verdict import Verdict

SCHEMA = 1
OF_EXAMPLE = ("text", "texts", "tokens", "places", "special", "template", "grid", "file")


def written(result: Result) -> str:
    """An `Explanation` or `Alignment` as JSON."""
    example = getattr(result, "example", None)
    content = asdict(replace(result, example=None) if example else result)
    content.pop("example", None)
    content |= {name: getattr(example, name) for name in OF_EXAMPLE if example}
    if isinstance(result, Explanation):
        content |= {"unit": result.unit, "reading": result.reading}
    if result.verdict:
        content["verdict"] |= {"headline": result.verdict.headline, "sentence": result.verdict.sentence}
    return json.dumps({"schema": SCHEMA} | content, default=_plain, ensure_ascii=False)


def _plain(value: Tensor | date) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value.isoformat()


def read(source: str | Path) -> Explanation:
    """The explanation that was written; the arguments and errors are those of `Explanation.from_json`."""
    text = str(source)
    if not text.startswith("{"):
        text = Path(source).read_text(encoding="utf-8")
    content = json.loads(text)
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or "value" not in content:
        raise ValueError(
            f"expected one explanation with schema {SCHEMA}, as to_json writes it, not a table or generated text; got "
            f"{shortened(str(source))}"
        )
    example = _made(Example, content, inputs={}, token_of_piece=torch.empty(0))
    verdict, coefficients, heads = content["verdict"], content["coefficients"], content["heads"]
    return _made(
        Explanation,
        content,
        example=example,
        scores=torch.tensor(content["scores"]),
        day=date.fromisoformat(content["day"]),
        verdict=verdict and _verdict(verdict),
        coefficients=coefficients and _made(Coefficients, coefficients, values=torch.tensor(coefficients["values"])),
        heads=heads and torch.tensor(heads),
        rankings={name: torch.tensor(scores) for name, scores in content["rankings"].items()},
    )


def _verdict(content: Mapping[str, Any]) -> Verdict:
    before, after = content["before"], content["after"]
    return _made(Verdict, content, before=_made(Prediction, before), after=after and _made(Prediction, after))


def _made(kind: Any, content: Mapping[str, Any], **others: Any) -> Any:
    """A dataclass of those entries that are its fields, and of others in their place."""
    entries = {field.name: content[field.name] for field in fields(kind) if field.name in content}
    return kind(**entries | others)
