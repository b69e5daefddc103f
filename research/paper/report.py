"""All measures of the paper's experiments, beside the paper's numbers, from results/cells.csv.

python -m benchmarks.tables research.paper.report.report research/paper/results/cells.csv texts
"""

from collections.abc import Mapping

import pandas as pd

from benchmarks.runs import PAIR, check_runs, comparisons, markdown, spread, where
from research.paper.experiments import GROUPS, VARIANTS, Experiment, read_experiments

SECTIONS = {  # by heading: the columns, their headings, and the factor
    "Accuracy, and the lowest recall of a class, in percent": (
        {"test_accuracy": "test accuracy", "worst_recall": "lowest recall"},
        100,
    ),
    "Kendall's tau of coefficients and contributions with the effect of a token, within a text": (
        {
            f"tau_{kind}_{effect}": f"{name}, {what}"
            for kind, name in (("a", "a"), ("|a|", "\\|a\\|"), ("au", "a·u"))
            for effect, what in (("gradient", "gradient"), ("erasure", "deletion"), ("zeroing", "zeroing"))
            if (kind, effect) != ("au", "zeroing")  # a·u is the effect of zeroing
        },
        1,
    ),
    "Total variation of the prediction under other coefficients": (
        {"permutation": "permutation", "randomisation": "randomisation"},
        1,
    ),
    "ERASER": (
        {
            f"{measure}_{kind}": f"{measure}, {name}"
            for measure in ("comprehensiveness", "sufficiency")
            for kind, name in (("au", "a·u"), ("|a|", "\\|a\\|"))
        },
        1,
    ),
    "Kendall's tau with erasure in every layer": (
        {"tau_contributions": "a·u", "tau_|contributions|": "\\|a·u\\|", "tau_|attention|": "\\|a\\|, last layer"},
        1,
    ),
    "Signs": (
        {
            "rarer_sign": "share of the rarer sign of a",
            "orientation_share": "share of Σ\\|a·u\\| with one sign of u",
            "polar_positive": "positive − neutral words",
            "polar_negative": "negative − neutral words",
        },
        1,
    ),
    "Signs and people": (
        {
            "human_sign_a": "oriented a",
            "human_sign_au": "a·u",
            "human_positive": "always +",
            "human_tau_a": "τ, oriented a",
            "human_tau_au": "τ, a·u",
        },
        1,
    ),
}
PAPERS = {  # our measure -> the paper's
    "test_accuracy": "accuracy",
    "tau_|a|_gradient": "gradient_tau",
    "tau_a_zeroing": "erasure_tau",
    "tau_|a|_zeroing": "absolute_erasure_tau",
    "permutation": "permutation",
    "randomisation": "randomisation",
}
TEXTS = "texts"


def selected(runs: pd.DataFrame, group: str | None = None) -> pd.DataFrame:
    """The measured rows of a group, or of all, with the title of the data; in the order of the experiments."""
    measured, frames = runs[runs["chosen"]], []
    for experiment in read_experiments([group] if group else [*GROUPS]):
        rows = where(measured, data=experiment.name)
        if len(rows):
            check_runs(rows, ["data", "variant"], rows["seed"].nunique())
            frames.append(rows.assign(title=experiment.title))
    rows = pd.concat(frames)
    share = rows["negative_share"]  # the overall sign of a model with one head is arbitrary
    return rows.assign(rarer_sign=share.where(share < 0.5, 1 - share))


def report(runs: pd.DataFrame, group: str) -> str:
    """Every measure of a group, a section each, and TanhMax minus softmax."""
    rows, experiments = selected(runs, group), read_experiments([group])
    parts = []
    for heading, (columns, factor) in SECTIONS.items():
        table = measure_table(rows, experiments, columns, factor)
        parts += [f"## {heading}\n\n{table}"] if table.count("\n") > 1 else []
    return "\n\n".join(parts)


def measure_table(
    runs: pd.DataFrame, experiments: list[Experiment], columns: Mapping[str, str], factor: float = 1
) -> str:
    """Mean ± standard deviation over seeds of each measure, the paper's numbers, and TanhMax minus softmax."""
    digits = 1 if factor == 100 else 3
    tests = comparisons(runs, ["data"], "variant", PAIR, {column: factor for column in columns if column in runs})
    rows = []
    for experiment in experiments:
        lines = {}
        for variant, papers in experiment.published.items():
            theirs = [papers.get(PAPERS.get(column, "")) for column in columns]
            lines[f"{variant}, paper"] = ["" if number is None else f"{number:.{digits}f}" for number in theirs]
        for variant in VARIANTS:
            seeds = where(runs, data=experiment.name, variant=variant)
            lines[variant] = [spread(seeds, column, factor, digits) for column in columns]
        difference = [tests[experiment.name, column].cells(digits) if (experiment.name, column) in tests else [""]
                      for column in columns]  # fmt: skip
        lines["TanhMax − softmax"] = [", p ".join(filter(None, cells)) for cells in difference]
        rows += [[experiment.title, name, *cells] for name, cells in lines.items() if any(cells)]
    return markdown(["data", "variant", *columns.values()], rows)
