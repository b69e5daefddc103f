"""The measured numbers of a checkpoint in its card."""

from pathlib import Path
from typing import Any

from hf_bidir.hub.files import digests

METRICS = {  # the run's metric -> its name on the Hub, or None
    "accuracy": "accuracy",
    "macro_f1": "f1",
    "exact_match": "exact_match",
    "token_accuracy": None,
    "masked_accuracy": None,
    "perplexity": "perplexity",
    "teacher_perplexity": None,
    "relative_error": "relative_error",
    "agreement": None,
}
EQUAL = 5e-5  # half of the last digit that is printed, for numbers below 1


def run_scores(results: dict[str, Any], split: str) -> dict[str, float]:
    """The numbers of one split in all_results.json that a card shows: overall metrics first, then recall by class."""
    prefix = "test_" if split == "test" else "eval_"
    measured = {key.removeprefix(prefix): value for key, value in results.items() if key.startswith(prefix)}
    overall = {name: measured[name] for name in METRICS if measured.get(name) is not None}
    return overall | {name: value for name, value in measured.items() if name.startswith("recall_")}


def overall(scores: dict[str, float]) -> dict[str, float]:
    """The scores without those of single classes."""
    return {name: value for name, value in scores.items() if name in METRICS}


def is_reproduced(scores: dict[str, float], evaluation: dict[str, Any], data: dict[str, Any] | None) -> bool:
    """Whether evaluation.json holds the run's numbers, measured again on the run's data."""
    if not evaluation or not scores or not same_data(data, evaluation["data"]):
        return False
    return all(nearly_equal(evaluation["scores"].get(name, -1), value) for name, value in scores.items())


def is_of_these_files(folder: Path, evaluation: dict[str, Any]) -> bool:
    """Whether evaluation.json was measured on the weights, config and tokenizer or processor in the folder."""
    files, measured = digests(folder), evaluation.get("files", {})
    has_weights = any(name.endswith(".safetensors") for name in files)
    return has_weights and all(measured.get(name) == digest for name, digest in files.items())


def add_later_measurement(run: dict[str, Any], results: dict[str, Any], evaluation: dict[str, Any]) -> bool:
    """Add the test scores of evaluation.json to a run without test data; whether there were any to add.

    Healing has no labels, so a healed model is evaluated afterwards.
    """
    if evaluation.get("split") != "test" or "test" in run["data"]:
        return False
    results |= {f"test_{name}": value for name, value in evaluation["scores"].items()}
    run["data"]["test"] = evaluation["data"]
    return True


def nearly_equal(measured: float, claimed: float, tolerance: float = EQUAL) -> bool:
    """Whether two numbers are equal up to a tolerance, which is relative above 1, as for perplexities."""
    return abs(measured - claimed) <= tolerance * max(1.0, abs(claimed))


def same_data(recorded: dict[str, Any] | None, measured: dict[str, Any]) -> bool:
    """Whether two records of a split's data match: the same file hash, or the same source."""
    if not recorded or recorded.get("rows") != measured.get("rows"):
        return False
    key = "sha256" if "sha256" in recorded or "sha256" in measured else "source"
    return recorded.get(key) == measured.get(key)


def in_words(metric: str) -> str:
    """A metric's name for tables."""
    if metric.startswith("recall_"):
        return metric.replace("recall_", "recall of ", 1).replace("|", r"\|")  # a bar would end the table's cell
    return metric.replace("_f1", "-F1").replace("_", " ")
