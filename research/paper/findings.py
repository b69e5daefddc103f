"""The tables of docs/findings.md, from the rows of `python -m research.paper` and of other benchmarks."""

from collections.abc import Iterable, Mapping
from functools import cache
from math import ceil
from pathlib import Path

import pandas as pd

from benchmarks.runs import PAIR, check_runs, comparisons, markdown, read_runs, spread, where
from benchmarks.seeds import TESTED, Comparison
from research.mechanisms import recurrent
from research.paper.experiments import GROUPS
from research.paper.report import Results, read_results, report_text

EXPERIMENTS = tuple(name for name in GROUPS if name != "all")
LSTM, LSTM_SEEDS = "IMDB, bidirectional LSTM", 3
TAUS = {
    "tau_|a|_erasure": "deletion",
    "tau_|a|_zeroing": "zeroing",
    "tau_|a|_gradient": "gradients",
    "tau_|attention|": "deletion",  # of the last layer of deep models
}
REFERENCES = [*dict.fromkeys(TAUS.values())]


@cache
def results(group: str) -> Results:
    """The committed results of a group of `python -m research.paper`."""
    return read_results(Path(__file__).with_name("results") / group)


def chosen(groups: Iterable[str] = EXPERIMENTS) -> pd.DataFrame:
    """The selected models of groups, with the title of their data and whether it is generated."""
    frames = []
    for found in map(results, groups):
        for one in found.experiments:
            frames.append(found.of(one).assign(title=one.title, synthetic=one.synthetic is not None))
    return pd.concat(frames)


def accuracy_runs() -> pd.DataFrame:
    """Test accuracies of the paper's experiments and of the LSTM on IMDB."""
    lstm = where(read_runs(recurrent.FILE), data="imdb")
    check_runs(lstm, ["data", "activation"], LSTM_SEEDS)
    lstm = lstm.assign(title=LSTM, variant=lstm["activation"], test_accuracy=lstm["accuracy"])
    return pd.concat([chosen(), lstm])


def accuracy() -> str:
    """Accuracies, their difference, and the smallest margin within which they are equivalent."""
    runs, rows = accuracy_runs(), []
    tests = comparisons(runs, ["title"], "variant", PAIR, {"test_accuracy": 100})
    for (title, _), one in tests.items():
        found = [where(runs, title=title, variant=name) for name in (*PAIR[::-1], "mean")]
        means = [spread(of, "test_accuracy", 100) for of in found]
        rows.append([title, str(len(found[0])), *means, *one.cells()[:2], margin(one)])
    header = ["data", "seeds", "softmax", "TanhMax", "mean pooling", *TESTED[:2], "equivalent within"]
    return markdown(header, rows)


def texts() -> str:
    """Accuracies of the paper's model on the texts that are not generated, and their difference."""
    runs, rows = chosen(["texts"]), []
    for title, one in measured("test_accuracy", scale=100).items():
        means = [spread(where(runs, title=title, variant=name), "test_accuracy", 100) for name in PAIR[::-1]]
        rows.append([title, *means, one.text()])
    return markdown(["data", "softmax", "TanhMax", "TanhMax − softmax"], rows)


def measured(column: str, first: str = "tanhmax", second: str = "softmax", scale: float = 1) -> dict[str, Comparison]:
    """`first` minus `second` of a measure on all real texts, by title; p-values corrected over these."""
    tests = comparisons(
        chosen(["texts"]).query("not synthetic"), ["title"], "variant", (first, second), {column: scale}
    )
    return {title: one for (title, _), one in tests.items()}


def listed(tests: Mapping[str, Comparison], sign: int) -> str:
    """The names of the comparisons whose difference has the sign and a corrected p-value below 0.05."""
    names = [name for name, one in tests.items() if one.p_value < 0.05 and one.difference * sign > 0]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names) or "none"


def margin(one: Comparison) -> str:
    """The smallest margin, in tenths, within which two one-sided tests show equivalence at 95 %; empty if undefined."""
    interval = one.interval(0.9)
    return f"{ceil(10 * max(map(abs, interval)) + 1e-9) / 10:.1f}" if interval else ""


def published() -> str:
    """The paper's accuracies, its protocol run again with the label in the scores, and the same weights without it."""
    found, rows = results("texts"), []
    tests = comparisons(found.published, ["data"], "activation", PAIR, {"fair": 1})
    for one in found.experiments:
        own = where(found.published, data=one.name)
        if own.empty:
            continue
        papers = [f"{one.published[name]['accuracy']:.1f}" for name in PAIR[::-1]]
        pair = [where(own, activation=name) for name in PAIR[::-1]]
        leaked = [f"{of['leaked'].min():.1f} to {of['leaked'].max():.1f}" for of in pair]
        fair = [spread(of, "fair") for of in pair]
        rows.append([one.title, *papers, *leaked, *fair, *tests[one.name, "fair"].cells()[:2]])
    kinds = ("published", "with the label", "without")
    header = [f"{name}, {kind}" for kind in kinds for name in ("softmax", "TanhMax")]
    return markdown(["data", *header, "without: difference", "p"], rows)


def agreement() -> str:
    """Kendall's tau of the magnitudes of `a`, or of attention in deep models, with erasure and gradients.

    One row for each data set: the means of softmax and TanhMax, their difference and its p-value by reference.
    """
    runs = chosen()
    tests = comparisons(runs, ["title"], "variant", PAIR, dict.fromkeys(TAUS, 1))
    rows: dict[str, list[str]] = {title: [title] + [""] * len(REFERENCES) for title in runs["title"].unique()}
    for (title, column), one in tests.items():
        softmax, tanhmax = (where(runs, title=title, variant=name)[column].mean() for name in PAIR[::-1])
        difference, p_value, _ = one.cells(2)
        place = 1 + REFERENCES.index(TAUS[column])
        rows[title][place] = f"{softmax:.2f} → {tanhmax:.2f}: {difference}{f', p {p_value}' if p_value else ''}"
    return markdown(["data", *REFERENCES], [*rows.values()])


def signs() -> str:
    """The share of the rarer sign, and how much of `Σ |a·u|` has the sign of its coefficient, by seed."""
    runs, rows = chosen(), []
    for title in runs["title"].unique():
        found = where(runs, title=title, variant="tanhmax")
        share = found["orientation_share"].dropna()
        rarer = ", ".join(f"{100 * one:.0f}" for one in found["rarer_sign"])
        rows.append([title, rarer, f"{share.min():.2f} to {share.max():.2f}" if len(share) else ""])
    return markdown(["data", "the rarer sign, % by seed", "share with one sign of u, lowest to highest seed"], rows)


def erasure() -> str:
    """The real texts on which TanhMax is shown to change a measure of erasure by rank."""
    rows = []
    for name, good in (("comprehensiveness", "high"), ("sufficiency", "low")):
        for rank, suffix, note in (("a·u", "au", f" ({good} is good)"), ("\\|a\\|", "|a|", "")):
            tests = measured(f"{name}_{suffix}")
            rows.append([f"{name} by `{rank}`{note}", listed(tests, 1), listed(tests, -1)])
    return markdown(["measure", "higher with TanhMax", "lower with TanhMax"], rows)


def report(group: str) -> str:
    """The report of the committed results of a group."""
    return report_text(Path(__file__).with_name("results") / group)
