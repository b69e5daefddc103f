"""The tables of docs/findings.md, from the rows of `python -m research.paper` and of other benchmarks."""

from math import ceil

import pandas as pd

from benchmarks.runs import PAIR, check_runs, comparisons, markdown, read_runs, spread, where
from benchmarks.seeds import TESTED, Comparison
from research.mechanisms import recurrent
from research.paper.experiments import read_experiments
from research.paper.report import TEXTS, selected

LSTM, LSTM_SEEDS = "IMDB, bidirectional LSTM", 3
TAUS = {
    "tau_|a|_erasure": "deletion",
    "tau_|a|_zeroing": "zeroing",
    "tau_|a|_gradient": "gradients",
    "tau_|attention|": "deletion",  # of the last layer of deep models
}
REFERENCES = [*dict.fromkeys(TAUS.values())]


def accuracy_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Test accuracies of the paper's experiments and of the LSTM on IMDB."""
    lstm = where(read_runs(recurrent.FILE), data="imdb")
    check_runs(lstm, ["data", "activation"], LSTM_SEEDS)
    lstm = lstm.assign(title=LSTM, variant=lstm["activation"], test_accuracy=lstm["accuracy"])
    return pd.concat([selected(runs), lstm])


def accuracy(runs: pd.DataFrame) -> str:
    """Accuracies, their difference, and the smallest margin within which they are equivalent."""
    runs, rows = accuracy_runs(runs), []
    for (title, _), test in comparisons(runs, ["title"], "variant", PAIR, {"test_accuracy": 100}).items():
        variants = [where(runs, title=title, variant=name) for name in (*PAIR[::-1], "mean")]
        means = [spread(seeds, "test_accuracy", 100) for seeds in variants]
        rows.append([title, str(len(variants[0])), *means, *test.cells(), margin(test)])
    header = ["data", "seeds", "softmax", "TanhMax", "mean pooling", *TESTED, "equivalent within"]
    return markdown(header, rows)


def margin(test: Comparison) -> str:
    """The smallest margin, in tenths, within which the means are equivalent; empty if undefined."""
    smallest = test.margin()
    return f"{ceil(10 * smallest + 1e-9) / 10:.1f}" if smallest else ""


def published(runs: pd.DataFrame) -> str:
    """The paper's accuracies, its protocol run again with the label in the scores, and the same weights without it."""
    tests, rows = comparisons(runs, ["data"], "activation", PAIR, {"fair": 1}), []
    for experiment in filter(lambda experiment: experiment.as_published, read_experiments([TEXTS])):
        papers = [f"{experiment.published[name]['accuracy']:.1f}" for name in PAIR[::-1]]
        pair = [where(runs, data=experiment.name, activation=name) for name in PAIR[::-1]]
        leaked = [f"{seeds['leaked'].min():.1f} to {seeds['leaked'].max():.1f}" for seeds in pair]
        fair = [spread(seeds, "fair") for seeds in pair]
        rows.append([experiment.title, *papers, *leaked, *fair, *tests[experiment.name, "fair"].cells()])
    kinds = ("published", "with the label", "without")
    header = [f"{name}, {kind}" for kind in kinds for name in ("softmax", "TanhMax")]
    return markdown(["data", *header, "without: difference", "p"], rows)


def agreement(runs: pd.DataFrame) -> str:
    """Kendall's tau of the magnitudes of `a`, or of attention in deep models, with erasure and gradients.

    One row for each data set: the means of softmax and TanhMax, their difference and its p-value by reference.
    """
    runs = selected(runs)
    rows: dict[str, list[str]] = {title: [title] + [""] * len(REFERENCES) for title in runs["title"].unique()}
    for (title, column), test in comparisons(runs, ["title"], "variant", PAIR, dict.fromkeys(TAUS, 1)).items():
        softmax, tanhmax = (where(runs, title=title, variant=name)[column].mean() for name in PAIR[::-1])
        difference = ", p ".join(filter(None, test.cells(2)))
        rows[title][1 + REFERENCES.index(TAUS[column])] = f"{softmax:.2f} → {tanhmax:.2f}: {difference}"
    return markdown(["data", *REFERENCES], [*rows.values()])


def signs(runs: pd.DataFrame) -> str:
    """The share of the rarer sign, and how much of `Σ |a·u|` has the sign of its coefficient, by seed."""
    rows = []
    for title, seeds in where(selected(runs), variant="tanhmax").groupby("title", sort=False):
        share = seeds["orientation_share"].dropna()
        rarer = ", ".join(f"{100 * part:.0f}" for part in seeds.sort_values("seed")["rarer_sign"])
        rows.append([title, rarer, f"{share.min():.2f} to {share.max():.2f}" if len(share) else ""])
    return markdown(["data", "the rarer sign, % by seed", "share with one sign of u, lowest to highest seed"], rows)
