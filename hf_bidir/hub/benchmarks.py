"""A checkpoint's numbers on benchmarks of the Hub, in the format of `.eval_results/*.yaml`.

The Hub shows them on the model's page and on the leaderboard of the benchmark, and reads them from data sets that it
knows as benchmarks only: those with an eval.yaml, whose tasks have ids
(https://huggingface.co/docs/hub/eval-results). All other numbers are in the card's model index.
"""

import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, constants, eval_result_entries_to_yaml

from hf_bidir.common.files import RECORD, read_json, replacing, write_json

FOLDER = ".eval_results"
OURS = f"{FOLDER}/hf_bidir.yaml"
REPORTED = ("accuracy", "macro_f1")  # in [0, 1], and better the larger they are, as on leaderboards
BENCHMARK = re.compile(r"([\w.-]+/[\w.-]+):([\w.-]+)")


def name_benchmark(folder: Path, benchmark: str) -> None:
    """Record in run.json that the run's scores are those on a benchmark.

    Args:
        folder: of the run.
        benchmark: "owner/data-set:task", with a task id of the data set's eval.yaml; empty to take it back.

    Raises:
        ValueError: another form, or a folder without run.json.
    """
    if benchmark and not BENCHMARK.fullmatch(benchmark):
        raise ValueError(f"expected a benchmark as OWNER/DATASET:TASK, such as me/reviews:test, got {benchmark!r}.")
    if not (folder / RECORD).is_file():
        raise ValueError(f"expected a run with a {RECORD}, which names its benchmark; {folder} has none.")
    write_json(folder / RECORD, read_json(folder / RECORD) | {"benchmark": benchmark})


def benchmark_results(facts: dict[str, Any]) -> list[EvalResultEntry]:
    """The accuracy, or else the macro-F1, of this checkpoint on the benchmark that run.json names; an empty list
    without one of these.

    Args:
        facts: of the card.
    """
    named = BENCHMARK.fullmatch(facts["run"].get("benchmark") or "")
    name = next((name for name in REPORTED if name in facts["scores"]), None)
    if not (named and name):
        return []
    notes = name.replace("_", " ") + ", measured again from the saved files" * facts["verified"]
    published = facts["repo_id"] and f"{constants.ENDPOINT}/{facts['repo_id']}"
    source = {"source_url": published, "source_name": "Model card"} if published else {}
    dataset, task = named.groups()
    return [EvalResultEntry(dataset, task, facts["scores"][name], notes=notes, **source)]


def write_benchmark_results(folder: Path, facts: dict[str, Any]) -> None:
    """Write the file of `benchmark_results`, or remove it if there are none; others in its folder stay."""
    entries = benchmark_results(facts)
    if not entries:
        (folder / OURS).unlink(missing_ok=True)
        return
    (folder / FOLDER).mkdir(exist_ok=True)
    with replacing(folder / OURS) as temporary:
        temporary.write_text(yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False), encoding="utf-8")
