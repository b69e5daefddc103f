"""Which model types of transformers can be signed: the results of `benchmarks/families.py`, without importing torch."""

import json
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

from hf_bidir.common.errors import did_you_mean
from hf_bidir.common.model_types import stock_type

SUMMARY = Path(__file__).with_name("families.json")
KINDS = ("encoder", "vision", "decoder", "encoder-decoder", "multimodal", "audio", "other", "part")
PASSED, FAILED = "✓", "✗"


@cache
def summary() -> dict[str, Any]:
    """The results of the sweep: the version of "transformers", the names of the "checks", and the "types" by name.

    Each type has "supported", "kind", "model" (its class) and "reason" (None where it is supported); where the checks
    ran, "checks" has one of ✓, ✗ and – (does not apply) for each name. "partial": all of them pass with `partial=True`.
    """
    return json.loads(SUMMARY.read_text(encoding="utf-8"))


def overview() -> str:
    """Counts by kind, and the supported model types."""
    types = summary()["types"]
    supported = [name for name, entry in types.items() if entry["supported"]]
    blocks = [
        f"{len(supported)} of the {len(types)} model types of transformers {summary()['transformers']} can be signed. "
        "`hf-bidir families NAME` describes one type."
    ]
    for kind in KINDS:
        names = [name for name in supported if types[name]["kind"] == kind]
        if names:
            listed = fill(", ".join(names), 118, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
            blocks.append(f"{kind}: {len(names)}\n{listed}")
    return "\n\n".join(blocks)


def about(model_type: str) -> str:
    """A description of a model type: whether it is supported, which checks ran, and the reason if it is not.

    Raises:
        ValueError: transformers has no such model type; the message names the closest.
    """
    types, name = summary()["types"], stock_type(model_type.lower())
    if name not in types:
        hint = did_you_mean(name, list(types)) or " It is the model_type in config.json, such as roberta."
        raise ValueError(f'transformers {summary()["transformers"]} has no model type "{name}".{hint}')
    entry = types[name]
    support = "supported" if entry["supported"] else f"not supported: {entry['reason']}"
    lines = [f"{name} ({entry['model']}, {entry['kind']}): {support}"]
    if entry.get("partial"):
        lines.append("  partial=True signs a part of its attention")
    marks = list(zip(summary()["checks"], entry.get("checks", ""), strict=False))
    for heading, mark in (("checked", PASSED), ("failed", FAILED)):
        checks = [check for check, result in marks if result == mark]
        if checks:
            lines.append(f"  {heading}: {'; '.join(checks)}")
    return "\n".join(lines)
