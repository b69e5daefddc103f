"""Which model types of transformers can be signed: the results of `benchmarks/families.py`, without importing torch."""

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version
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
    supported = {name: entry for name, entry in types.items() if entry["supported"]}
    blocks = [
        f"{len(supported)} of the {len(types)} model types of transformers {summary()['transformers']} can be signed"
        f"{remark(_installed())}. `hf-bidir families NAME` describes one type. "
        f"{sum(entry['kind'] == 'part' for entry in types.values())} types are parts of others, without a model class; "
        f"{sum(entry.get('partial', False) for entry in types.values())} more can be signed in part (partial=True)."
    ]
    for kind in KINDS:
        names = [name for name, entry in supported.items() if entry["kind"] == kind]
        of_kind = sum(entry["kind"] == kind for entry in types.values())
        if names:
            listed = fill(", ".join(names), 118, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
            blocks.append(f"{kind}: {len(names)} of {of_kind}\n{listed}")
    return "\n\n".join(blocks)


def about(model_type: str) -> str:
    """A description of a model type: whether it is supported, which checks ran, and the reason if it is not.

    Raises:
        ValueError: transformers has no such model type; the message names the closest.
    """
    types, name = summary()["types"], stock_type(model_type.lower())
    if name not in types:
        hint = did_you_mean(name, list(types))
        if "/" in name:
            hint = " A model type is the model_type in config.json, such as roberta."
        raise ValueError(f'transformers {summary()["transformers"]} has no model type "{name}".{hint}')
    entry = types[name]
    model = f"{entry['model']}, {entry['kind']}" if entry["model"] else entry["kind"]
    lines = [f"{name} ({model}): {'supported' if entry['supported'] else 'not supported'}{remark(_installed())}"]
    if entry["reason"]:
        lines.append(f"  why: {entry['reason']}")
    if "partial" in entry:
        lines.append(f"  with partial=True: {'every check passes' if entry['partial'] else 'some checks fail'}")
    marks = dict(zip(summary()["checks"], entry.get("checks", ""), strict=False))
    for heading, mark in (
        ("checked", PASSED),
        ("failed", FAILED),
        ("not checked, because it does not apply or is not in the sample", "–"),
    ):
        if found := [check for check, got in marks.items() if got == mark]:
            lines.append(f"  {heading}: {'; '.join(found)}")
    return "\n".join(lines)


def remark(installed: str | None) -> str:
    """A note if the installed version of transformers differs from that of the summary, else an empty string."""
    measured = summary()["transformers"]
    if installed in (None, measured):
        return ""
    return f" (measured with transformers {measured}; {installed} is installed)"


def _installed() -> str | None:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None
