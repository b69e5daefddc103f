"""A checkpoint's numbers on benchmarks of the Hub, in the format of `.eval_results/*.yaml`.

The Hub shows them on the model's page and on the leaderboard of the benchmark, and reads them from data sets that it
knows as benchmarks only: those with an eval.yaml, whose tasks have ids
(https://huggingface.co/docs/hub/eval-results). All other numbers are in the card's model index.
"""

from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, constants, eval_result_entries_to_yaml

from hf_bidir.common.files import replacing
from hf_bidir.hub.card_numbers import overall

FOLDER = ".eval_results"
OURS = f"{FOLDER}/hf_bidir.yaml"


def benchmark_results(facts: dict[str, Any]) -> list[EvalResultEntry]:
    """The first overall metric of this checkpoint, in [0, 1], if the record of the split names a data set on the Hub
    and the `task_id` in its eval.yaml; an empty list otherwise.

    Args:
        facts: of the card.
    """
    part, scores = facts["run"]["data"].get(facts["split"], {}), overall(facts["scores"])
    if not (part.get("hub_name") and part.get("task_id") and scores):
        return []
    name, value = next(iter(scores.items()))
    notes = name.replace("_", " ") + ", measured again from the saved files" * facts["verified"]
    published = facts["repo_id"] and f"{constants.ENDPOINT}/{facts['repo_id']}"
    source = {"source_url": published, "source_name": "Model card"} if published else {}
    return [EvalResultEntry(part["hub_name"], part["task_id"], value, part.get("revision"), notes=notes, **source)]


def write_benchmark_results(folder: Path, facts: dict[str, Any]) -> None:
    """Write the file of `benchmark_results`, or remove it if there are none; others in its folder stay."""
    entries = benchmark_results(facts)
    if not entries:
        (folder / OURS).unlink(missing_ok=True)
        return
    (folder / FOLDER).mkdir(exist_ok=True)
    with replacing(folder / OURS) as temporary:
        temporary.write_text(yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False), encoding="utf-8")
