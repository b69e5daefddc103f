"""The tables of README.md, from results/conversions.csv."""

from pandas import DataFrame

from benchmarks.runs import comparison, markdown, spread, where
from research.conversions.run import ENCODER, SOFTMAX, TASKS, VARIANTS


def overview(runs: DataFrame) -> str:
    """The variants by the number of texts of healing: predictions, accuracy, and the signs."""
    rows = []
    for task, data in TASKS.items():
        softmax = where(runs, task=task, variant=SOFTMAX)
        healed = runs[(runs["task"] == task) & ~runs["variant"].isin([SOFTMAX, ENCODER])]
        if healed.empty:
            continue
        rows.append([data.title, SOFTMAX, "", *_numbers(softmax, softmax), "", ""])
        for (texts, variant), measured in healed.groupby(["texts", "variant"]):
            what = VARIANTS[variant].what
            rows.append(
                ["", what, f"{texts:,.0f}" if texts else "all", *_numbers(measured, softmax), *_signs(measured)]
            )
    columns = ["runs", "agreement", "accuracy", "difference", "recall by class", "minutes", "negative", "cost"]
    return markdown(["data", "variant", "texts", *columns], rows)


def encoder(runs: DataFrame) -> str:
    """MiniLM beside the committed healed encoder, both fine-tuned, or ViTs trained from scratch with softmax and with
    TanhMax: accuracy, difference and signs, by task."""
    rows = []
    for task, data in TASKS.items():
        softmax, healed = (where(runs, task=task, variant=name) for name in (SOFTMAX, ENCODER))
        if len(healed):
            softmax = softmax[softmax["seed"].isin(healed["seed"])]
            difference = comparison(healed, softmax, "accuracy", 100).text()
            accuracies = [spread(measured, "accuracy", 100) for measured in (softmax, healed)]
            rows.append([f"{data.title} ({data.detail})", str(len(healed)), *accuracies, difference, *_signs(healed)])
    return markdown(["data", "seeds", "softmax", "TanhMax", "difference", "negative", "cost"], rows)


def _numbers(measured: DataFrame, softmax: DataFrame) -> list[str]:
    """The number of runs, agreement, accuracy, its difference from softmax, mean recalls (of more than two classes
    the lowest and the highest) and minutes of healing."""
    difference = "" if measured is softmax else comparison(measured, softmax, "accuracy", 100).text()
    recalls = 100 * measured.filter(like="recall_").dropna(axis=1).mean()
    recalls = recalls if len(recalls) == 2 else recalls.agg(["min", "max"])
    return [
        str(len(measured)),
        spread(measured, "agreement", 100),
        spread(measured, "accuracy", 100),
        difference,
        " / ".join(f"{recall:.0f}" for recall in recalls),
        spread(measured, "minutes", digits=0),
    ]


def _signs(runs: DataFrame) -> list[str]:
    """The share of negative coefficients, and the accuracy that is lost without them, in points."""
    cost = runs.assign(cost=runs["accuracy"] - runs["accuracy_without_negatives"])
    return [f"{spread(runs, 'negative_share', 100, 0)} %", spread(cost, "cost", 100)]
