"""The scores of a checkpoint, from the files that its training run and its evaluation left beside it."""

from dataclasses import dataclass
from math import isclose, nan
from pathlib import Path

from scipy.stats import binomtest

from hf_bidir.common.files import RECORD, Json, read_json
from hf_bidir.finetune.record import RESULTS

from .files import digests

EVALUATION = "evaluation.json"
METRICS = {  # the run's metric -> its name on the Hub, if it has one
    "agreement": "agreement",
    "accuracy": "accuracy",
    "macro_f1": "f1",
    "exact_match": "exact_match",
    "token_accuracy": "",
    "masked_accuracy": "",
    "perplexity": "perplexity",
    "teacher_perplexity": "",
    "relative_error": "relative_error",
}
RECALL = "recall_"
PREFIXES = {"test": "test_", "validation": "eval_"}  # of the metrics in all_results.json, by split
SHARES = ("accuracy", "exact_match", "agreement")  # of the examples
EQUAL = 5e-5  # half of the last digit that is printed, for numbers below 1


@dataclass(frozen=True)
class Results:
    """The scores of a checkpoint, and where they come from.

    Attributes:
        run: run.json, with the data of a later evaluation.
        measured: all_results.json.
        evaluation: evaluation.json, if it was measured on the files in the folder; else empty.
        split: test, or validation where there is no test split.
        scores: the numbers of that split: overall metrics, then the recall of each class.
        measured_later: whether they are those of the evaluation, because the run had no test data.
    """

    run: Json
    measured: Json
    evaluation: Json
    split: str
    scores: dict[str, float]
    measured_later: bool = False

    @property
    def data(self) -> Json:
        """The record of the split's data."""
        return self.run["data"].get(self.split, {})

    @property
    def overall(self) -> dict[str, float]:
        """The scores without those of single classes."""
        return {name: value for name, value in self.scores.items() if name in METRICS}

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the first score over examples (Wilson 1927); None unless it is a share of them."""
        name, share = next(iter(self.scores.items()), ("", 0.0))
        rows = self.data.get("rows")
        if name not in SHARES or not rows:
            return None
        interval = binomtest(round(share * rows), rows).proportion_ci(method="wilson")
        return interval.low, interval.high

    @property
    def verified(self) -> bool:
        """Whether the evaluation measured the scores of the run again, on the same data."""
        again = self.evaluation
        if self.measured_later or not again:
            return False
        return self.is_of(again["split"], again["data"]) and agree(again["scores"], self.scores)

    def is_of(self, split: str, data: Json) -> bool:
        """Whether the scores were measured on this split: as many rows of the same files, or of the same data set."""
        key = "sha256" if "sha256" in self.data else "source"
        same_rows = self.data.get("rows") == data["rows"]
        return split == self.split and same_rows and self.data.get(key) == data.get(key)


def read_results(folder: Path) -> Results:
    """The results in a checkpoint folder; empty where files are missing."""
    run: Json = {"data": {}} | read_json(folder / RECORD)
    measured = read_json(folder / RESULTS)
    evaluation = read_json(folder / EVALUATION)
    evaluated = evaluation.get("files", {})
    if not digests(folder).items() <= evaluated.items():
        evaluation = {}
    if evaluation.get("split") == "test" and "test" not in run["data"]:
        run["data"]["test"] = evaluation["data"]
        return Results(run, measured, evaluation, "test", evaluation["scores"], measured_later=True)
    has_test = any(name.startswith(PREFIXES["test"]) for name in measured)
    split = "test" if has_test else "validation"
    return Results(run, measured, evaluation, split, scores_of(measured, PREFIXES[split]))


def agree(measured: dict[str, float], claimed: dict[str, float], tolerance: float = EQUAL) -> bool:
    """Whether all claimed scores were measured, up to a tolerance, which is relative above 1, as for perplexities."""
    return all(
        isclose(measured.get(name, nan), value, rel_tol=tolerance, abs_tol=tolerance) for name, value in claimed.items()
    )


def in_words(metric: str) -> str:
    """A metric's name for tables."""
    if metric.startswith(RECALL):
        return metric.replace(RECALL, "recall of ", 1).replace("|", r"\|")  # a bar would end the table's cell
    return metric.replace("_f1", "-F1").replace("_", " ")


def scores_of(metrics: Json, prefix: str) -> dict[str, float]:
    """The scores among the metrics with this prefix: overall ones, then the recall of each class."""
    scores = {
        name.removeprefix(prefix): value
        for name, value in metrics.items()
        if name.startswith(prefix) and value is not None  # None was infinite
    }
    overall = {name: scores[name] for name in METRICS if name in scores}
    recalls = {name: value for name, value in scores.items() if name.startswith(RECALL)}
    return overall | recalls
