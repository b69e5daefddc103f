"""Tables of benchmarks/explanations.py: every measure by method, and the order of methods that the default follows."""

from collections.abc import Sequence

import pandas as pd
from explained import MODELS, TASKS

from hf_bidir.common.runs import check_runs, markdown, where
from hf_bidir.common.statistics import mean_in_interval
from hf_bidir.explain import METHODS

KEY = ("task", "model", "method")
# the title, the factor that gives the unit, digits, and whether higher is better; None where neither is
MEASURES = {
    "human_sign": ("human sign, %", 100, 1, True),
    "tau": ("τ", 1, 2, True),
    "auprc": ("AUPRC", 1, 2, True),
    "deletion": ("deletion ↓", 1, 2, False),
    "insertion": ("insertion ↑", 1, 2, True),
    "ffid_plus": ("FFid⁺ ↑", 1, 2, True),
    "ffid_minus": ("FFid⁻ ↓", 1, 2, False),
    "random_all": ("random weights", 1, 2, None),
    "forward_passes": ("cost", 1, 1, None),
}
TEXTS, IMAGES = ("sst2", "agreement", "movies"), ("fashion",)


def table(runs: pd.DataFrame, task: str, model: str) -> str:
    """All methods of a task and model, mean over seeds with the 95 % t interval; empty without rows."""
    runs = where(runs, task=task, model=model)
    if runs.empty:
        return ""
    check_runs(runs, KEY, int(runs["seed"].max()) + 1)
    header = ["method", *(title for title, *_ in MEASURES.values())]
    rows = [[method, *(_cell(found, measure) for measure in MEASURES)] for method, found in _by_method(runs)]
    return markdown(header, rows)


def _by_method(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(method, found) for method in METHODS if not (found := where(runs, method=method)).empty]


def _cell(found: pd.DataFrame, measure: str) -> str:
    _, scale, digits, _ = MEASURES[measure]
    values = found[measure].dropna() if measure in found else []
    return mean_in_interval(scale * values, digits) if len(values) else ""


def ranks(runs: pd.DataFrame, tasks: Sequence[str]) -> pd.Series:
    """The mean rank of every method over tasks, models, seeds and measures, the lowest first; 1 is the best.

    Methods that were not measured somewhere, because they take minutes per document, are left out.
    """
    found = []
    for _, rows in runs[runs["task"].isin(tasks)].groupby(["task", "model", "seed"]):
        rows = rows.set_index("method")
        for measure, (_, _, _, higher) in MEASURES.items():
            if higher is not None and measure in rows and rows[measure].notna().any():
                # unsigned methods cannot have the human sign, and a constant score has no tau
                worst = -float("inf") if higher else float("inf")
                values = rows[measure].fillna(worst)
                if measure == "human_sign":
                    values = values.where([METHODS[method].signed for method in rows.index], worst)
                found.append(values.rank(ascending=not higher))
    return pd.DataFrame(found).dropna(axis=1).mean().sort_values()


def order(runs: pd.DataFrame, of: str) -> str:
    """The methods with their mean ranks and costs, for "texts" or "images"."""
    tasks = TEXTS if of == "texts" else IMAGES
    chosen = runs[runs["task"].isin(tasks)]
    rows = [
        [method, f"{rank:.1f}", METHODS[method].cost, f"{where(chosen, method=method)['forward_passes'].median():.1f}"]
        for method, rank in ranks(runs, tasks).items()
    ]
    return markdown(["method", "mean rank", "passes through the model", "time, in forward passes"], rows)


def signs(runs: pd.DataFrame) -> str:
    """The human sign of signed methods on SST-2, by model."""
    runs = where(runs, task="sst2")
    present = [name for name in MODELS if not where(runs, model=name).empty]
    rows = [
        [method, *(_cell(where(found, model=name), "human_sign") for name in present)]
        for method, found in _by_method(runs)
        if METHODS[method].signed
    ]
    return markdown(["method", *(MODELS[name] for name in present)], rows)


def tables(runs: pd.DataFrame) -> str:
    """The tables of all tasks and models, under headings."""
    parts = [
        f"## {TASKS[task].title}, {MODELS[name]}\n\n{found}"
        for task in TASKS
        for name in MODELS
        if (found := table(runs, task, name))
    ]
    return "\n\n".join(parts)
