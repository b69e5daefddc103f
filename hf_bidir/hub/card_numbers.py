"""The measured numbers of a checkpoint in its card."""

from pathlib import Path
from typing import Any

from hf_bidir.common.statistics import TESTED, Comparison, compare, holm, mean_and_deviation, rounded
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
}
DIGITS = 4
EQUAL = 5e-5  # half of the last digit that is printed, for numbers below 1
MEAN = ", mean of "  # in the model index: "accuracy, mean of 5 seeds", beside "accuracy, this checkpoint (seed 0)"


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


def results_table(scores: dict[str, float], seeds: dict[str, Any], split: str, seed: int | None) -> list[list[str]]:
    """The rows of the card's results, the header first: with seeds.json, means of this recipe and its counterpart."""
    if not seeds:
        return [["metric", split], *([in_words(name), rounded(value)] for name, value in scores.items())]
    columns, count, compared = [seeds["this"], seeds["counterpart"]], seed_count(seeds), differences(seeds)
    tested = TESTED if len(seeds["seeds"]) > 1 else ()
    names = [f"{column['name']}, {count}" for column in columns]
    rows = [["metric", names[0], f"this checkpoint (seed {seed})", names[1], *tested]]
    for name in scores:
        if all(name in column["scores"] for column in columns):
            means = [mean_and_deviation(column["scores"][name], DIGITS) for column in columns]
            tests = compared[name].cells(DIGITS) if name in compared else [""] * len(TESTED)
            rows.append([in_words(name), means[0], rounded(scores[name]), means[1], *tests[: len(tested)]])
    return rows


def recalls_in(text: str) -> dict[str, float]:
    """The recall of each class in the `results_table` of a card, by the name of the score."""
    lines = [line for line in text.splitlines() if line.startswith(("| metric |", "| recall of "))]
    rows = [line.strip("| ").split(" | ") for line in lines]
    column = next((index for row in rows for index, cell in enumerate(row) if cell.startswith("this checkpoint")), 1)
    named = {row[0].removeprefix("recall of ").replace(r"\|", "|"): row[column] for row in rows if row[0] != "metric"}
    return {f"recall_{name}": float(value) for name, value in named.items()}


def differences(seeds: dict[str, Any]) -> dict[str, Comparison]:
    """The overall metrics of this recipe minus those of its counterpart, paired by seed, with corrected p-values."""
    ours, theirs = seeds["this"]["scores"], seeds["counterpart"]["scores"]
    return holm({name: compare(ours[name], theirs[name], paired=True) for name in overall(ours) if name in theirs})


def headline(scores: dict[str, float], seeds: dict[str, Any], seed: int | None) -> str | None:
    """The first metric in a sentence: its mean over seeds, then the checkpoint's own number."""
    name = next(iter(overall(scores)), None)
    if name is None:
        return None
    value, word = rounded(scores[name]), in_words(name).capitalize()
    if not seeds or name not in seeds["this"]["scores"]:
        return f"**{word} {value}**"
    values = seeds["this"]["scores"][name]
    over_seeds = f"**{word} {mean_and_deviation(values, DIGITS)}** "
    if len(values) == 1:
        return f"{over_seeds}(one seed)"
    return f"{over_seeds}(mean ± standard deviation of {seed_count(seeds)}); this checkpoint (seed {seed}): {value}"


def seed_count(seeds: dict[str, Any]) -> str:
    count = len(seeds["seeds"])
    return "1 seed" if count == 1 else f"{count} seeds"


def in_words(metric: str) -> str:
    """A metric's name for tables."""
    if metric.startswith("recall_"):
        return metric.replace("recall_", "recall of ", 1).replace("|", r"\|")  # a bar would end the table's cell
    return metric.replace("_f1", "-F1").replace("_", " ")
