"""The summary of the sweep over all model types, which `hf-bidir families` prints."""

import json
from typing import Any

import torch
import transformers

from hf_bidir.checkpoints.families import FAILED, PASSED, SUMMARY

Record = dict[str, Any]
MARKS = {"pass": PASSED, "fail": FAILED, "n/a": "–"}


def write_summary(records: list[Record]) -> None:
    """Write `hf_bidir/checkpoints/families.json`."""
    names = next(list(record["checks"]) for record in records if record.get("checks"))
    types = {record["type"]: _summary(record, names) for record in sorted(records, key=lambda record: record["type"])}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in types.items())
    head = json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "checks": names})[:-1]
    SUMMARY.write_text(f'{head}, "types": {{\n{lines}\n}}}}\n', encoding="utf-8")
    print(f"saved: {SUMMARY}")


def _summary(record: Record, names: list[str]) -> Record:
    checks = record.get("checks") or {}
    supported = record["status"] == "passed"
    reason = record["reason"]
    if record["status"] == "failed":
        reason = "; ".join(f"{name}: {why}" for name, (verdict, why) in checks.items() if verdict == "fail")
    summary = {
        "supported": supported,
        "kind": record.get("kind", "part"),
        "model": record.get("model"),
        "reason": None if supported else f"{record['status']}: {reason}" if record["status"] != "refused" else reason,
    }
    if record["status"] == "refused" and checks:
        summary["partial"] = not any(verdict == "fail" for verdict, _ in checks.values())
    return summary | ({"checks": "".join(MARKS[checks[name][0]] for name in names)} if checks else {})
