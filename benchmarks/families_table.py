"""Results of the sweep over all model types: a page, and the summary for `hf-bidir families`."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.measure import write_table
from hf_bidir.checkpoints.families import FAILED, KINDS, PASSED, SUMMARY

Record = dict[str, Any]
PAGE = Path(__file__).with_name("results") / "families.md"
STATUSES = ("passed", "failed", "refused", "not built", "part")
MARKS = {"pass": PASSED, "fail": FAILED, "n/a": "–"}
# common reasons why a check does not apply, explained above the table
USUAL = (
    "no padded text", "no text", "does not generate", "not in the sample", "not causal", "the stock model has no sdpa",
)  # fmt: skip
ALONE = ("encoder", "vision")


def write_results(records: list[Record], minutes: float | None) -> None:
    """Write `results/families.md` and `hf_bidir/checkpoints/families.json`."""
    names = next(list(record["checks"]) for record in records if record.get("checks"))
    rows = [_row(record, names) for record in sorted(records, key=lambda record: record["type"].lower())]
    header = ["type", "class", "kind", "layers", "result", *names, "notes"]
    write_table(PAGE, "Which model types can be signed", _notes(records, minutes), header, rows, "cpu")
    types = {record["type"]: _summary(record, names) for record in sorted(records, key=lambda record: record["type"])}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in types.items())
    head = json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "checks": names})[:-1]
    SUMMARY.write_text(f'{head}, "types": {{\n{lines}\n}}}}\n', encoding="utf-8")
    print(f"saved: {SUMMARY}")


def attends(record: Record) -> bool:
    """Whether a type has softmax attention; of one that could not be built, whether its code has some."""
    return record.get("layers") != 0


def _notes(records: list[Record], minutes: float | None) -> str:
    counts = Counter((record.get("kind", "part"), record["status"]) for record in records)
    lines = [f"| kind | types | {' | '.join(STATUSES)} |", f"|{'---|' * (len(STATUSES) + 2)}"]
    for kind in KINDS:
        of_kind = [counts[kind, status] for status in STATUSES]
        lines.append(f"| {kind} | {sum(of_kind)} | {' | '.join(map(str, of_kind))} |")
    total = [sum(counts[kind, status] for kind in KINDS) for status in STATUSES]
    lines.append(f"| all | {sum(total)} | {' | '.join(map(str, total))} |")
    alone = [record for record in records if record.get("kind") in ALONE and attends(record)]
    passed = sum(record["status"] == "passed" for record in alone)
    taken = "" if minutes is None else f" The sweep took {minutes:.0f} minutes."
    return (
        f"Every model type of transformers {transformers.__version__}, tiny and random.{taken}\n\n"
        + "\n".join(lines)
        + "\n\n"
        f"Of the encoders and vision models with softmax attention, {passed} of {len(alone)} pass "
        f"({passed / max(1, len(alone)):.1%}); those that could not be built count as not passed.\n\n"
        "passed: every check that applies; refused: `signed` refuses the type, with the reason and the result of the "
        "checks with `partial=True` if they could run; not built: the sweep found no small config or no inputs; "
        "part: a config without a model class of its own.\n\n"
        "✓ passed, ✗ failed, – does not apply: no text, no padding, no generation, not causal, no such backend in the "
        "stock model, not in the sample of isolated reloads; other reasons are in the notes. λ = 0 equals the stock "
        "model within 1e-5 of the largest output, other paths and rows of a padded batch within 1e-4, and λ = 1 "
        "changes the outputs by more than 1e-3."
    )


def _row(record: Record, names: list[str]) -> list[str]:
    checks = record.get("checks") or {}
    notes = [record["reason"]] if record["reason"] else []
    for name, (verdict, reason) in checks.items():
        if reason and not (verdict == "n/a" and reason.startswith(USUAL)):
            notes.append(f"{name}: {reason}")
    return [
        record["type"],
        record.get("model", ""),
        record.get("kind", "part"),
        str(record.get("layers", "")),
        record["status"],
        *(MARKS[checks[name][0]] if name in checks else "" for name in names),
        "; ".join(notes).replace("|", "\\|").replace("\n", " "),
    ]


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
