"""The tables of README.md, from results/conversions.csv."""

from pandas import DataFrame

from benchmarks.runs import comparison, markdown, spread, where
from research.conversions.run import TASKS, VARIANTS

TITLES = {
    "sst2": "SST-2",
    "ag_news": "AG News, four classes",
    "imdb": "IMDB, a subset",
    "fashion_mnist": "Fashion-MNIST, a ViT",
    "imdb_lm": "IMDB, a language model's next tokens",
}
ENCODER = "encoder"  # the variant that starts from the committed encoder
EARLIER = "TanhMax, with the penalties of that time"  # of language models, whose default has changed since


def overview(runs: DataFrame) -> str:
    """The variants: accuracy, its difference from softmax, and the signs."""
    rows = []
    for task, data in TITLES.items():
        softmax = where(runs, task=task, variant="softmax")
        for variant in VARIANTS:
            measured = where(runs, task=task, variant=variant)
            if variant == ENCODER or measured.empty:
                continue
            first = variant == "softmax"
            name = EARLIER if (task, variant) == ("imdb_lm", "signs") else VARIANTS[variant].what
            difference = "" if first else comparison(measured, softmax, "accuracy", 100).text()
            accuracy = spread(measured, "accuracy", 100)
            rows.append([data if first else "", name, str(len(measured)), accuracy, difference, *_signs(measured)])
    return markdown(["data", "variant", "runs", "accuracy", "difference", "negative", "cost"], rows)


def encoder(runs: DataFrame) -> str:
    """MiniLM beside the committed healed encoder, both fine-tuned: accuracy, difference and signs, by task."""
    rows = []
    for task, data in TASKS.items():
        softmax, healed = (where(runs, task=task, variant=name) for name in ("softmax", ENCODER))
        if len(healed):
            softmax = softmax[softmax["seed"].isin(healed["seed"])]
            difference = comparison(healed, softmax, "accuracy", 100).text()
            accuracies = [spread(measured, "accuracy", 100) for measured in (softmax, healed)]
            rows.append([data.title, str(len(healed)), *accuracies, difference, *_signs(healed)])
    return markdown(["data", "seeds", "softmax", "minilm-tanhmax", "difference", "negative", "cost"], rows)


def _signs(runs: DataFrame) -> list[str]:
    """The share of negative coefficients, and the accuracy that is lost without them, in points."""
    cost = runs.assign(cost=runs["accuracy"] - runs["accuracy_without_negatives"])
    return [f"{spread(runs, 'negative_share', 100, 0)} %", spread(cost, "cost", 100)]
