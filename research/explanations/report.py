"""Tables of run.py: every measure by method, and the order of methods that the default follows."""

import pandas as pd

from benchmarks.runs import markdown, where
from hf_bidir.common.statistics import interval, mean_in_interval
from hf_bidir.explain import METHODS
from research.explanations.measures import RANDOM
from research.explanations.tasks import MODELS, TASKS

# the title, the factor that gives the unit, digits, and whether higher is better; None where neither is
MEASURES = {
    "human_sign": ("human sign, %", 100, 1, True),
    "tau": ("τ", 1, 2, True),
    "auprc": ("AUPRC", 1, 2, True),
    "deletion": ("deletion ↓", 1, 2, False),
    "insertion": ("insertion ↑", 1, 2, True),
    "ffid_plus": ("FFid⁺ ↑", 1, 3, True),
    "ffid_minus": ("FFid⁻ ↓", 1, 3, False),
    "random_rho": ("random weights, ρ", 1, 2, None),
    "random_abs": ("mean \\|ρ\\|", 1, 2, None),
    "forward_passes": ("cost", 1, 1, None),
}
FAMILIES = {
    "people": ("human_sign", "tau", "auprc"),
    "curves": ("deletion", "insertion"),
    "F-Fidelity": ("ffid_plus", "ffid_minus"),
}
TEXTS, IMAGES = ("sst2", "agreement", "movies"), ("fashion",)
REPEATED, FAST = "erasure-token", ("1 backward", "2 forward, 2 backward")
SIGNED = [name for name, method in METHODS.items() if method.explains_output]
UNSIGNED = [name for name, method in METHODS.items() if not method.signed]


def table(runs: pd.DataFrame, task: str, model: str) -> str:
    """All methods of a task and model on the half that reports, mean over seeds with the 95 % t interval."""
    runs = where(runs, task=task, model=model, half="report")
    header = ["method", *(title for title, *_ in MEASURES.values())]
    rows = [[method, *(_cell(found, measure) for measure in MEASURES)] for method, found in _by_method(runs)]
    return markdown(header, rows) if rows else ""


def _by_method(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(method, found) for method in (*METHODS, RANDOM) if not (found := where(runs, method=method)).empty]


def _cell(found: pd.DataFrame, measure: str) -> str:
    _, scale, digits, _ = MEASURES[measure]
    values = found[measure].dropna() if measure in found else []
    return mean_in_interval(scale * values, digits) if len(values) else ""


def ranks(runs: pd.DataFrame, tasks: tuple[str, ...], half: str, methods: list[str]) -> pd.DataFrame:
    """The place of each method by seed, from 0 (always the best) to 1 (always the worst).

    Means of ranks within a family of measures, then over families, tasks and models. Methods that were not measured in
    every task, and scores that are the same as those of another method, such as erasure-mask with softmax, count as
    they are.
    """
    runs = runs[runs["task"].isin(tasks) & (runs["half"] == half) & runs["method"].isin(methods)]
    groups = list(runs.groupby(["task", "model", "seed"]))
    common = [name for name in methods if all(name in set(rows["method"]) for _, rows in groups)]
    found = []
    for (task, model, seed), rows in groups:
        rows = rows.set_index("method").loc[common]
        families = [_family(rows, measures) for measures in FAMILIES.values()]
        places = pd.concat([one for one in families if one is not None], axis=1).mean(axis=1)
        found.append(places.rename((task, model, seed)))
    if not found:
        return pd.DataFrame()
    table = pd.DataFrame(found)
    table.index = pd.MultiIndex.from_tuples(table.index, names=["task", "model", "seed"])
    return table.groupby(["seed", "task"]).mean().groupby("seed").mean()


def _family(rows: pd.DataFrame, measures: tuple[str, ...]) -> pd.Series | None:
    """The mean place of each method in some measures; None where none of them was measured for all methods."""
    ranked = [
        (rows[measure].rank(ascending=not MEASURES[measure][3]) - 1) / max(1, len(rows) - 1)
        for measure in measures
        if measure in rows and rows[measure].notna().all()
    ]
    return pd.concat(ranked, axis=1).mean(axis=1) if ranked else None


def _marked(method: str) -> str:
    return method + " \\*" * (method == REPEATED)


def order(runs: pd.DataFrame, of: str, signed: bool = True) -> str:
    """The methods by their places on the half that chooses, with those on the half that reports, and costs."""
    tasks, methods = (TEXTS if of == "texts" else IMAGES), [*(SIGNED if signed else UNSIGNED), RANDOM]
    chosen, reported = (ranks(runs, tasks, half, methods) for half in ("choice", "report"))
    rows = []
    for method in chosen.mean().sort_values().index:
        own = runs[runs["task"].isin(tasks) & (runs["method"] == method)]
        cost = METHODS[method].cost if method in METHODS else ""
        places = [mean_in_interval(half[method], 2) for half in (chosen, reported)]
        rows.append([_marked(method), *places, cost, f"{own['forward_passes'].median():.1f}", _cell(own, "random_rho")])
    header = ["method", "choice", "report", "passes through the model", "time, in forward passes", "random weights, ρ"]
    return markdown(header, rows)


def first(runs: pd.DataFrame, of: str) -> str:
    """The method that comes first on the half that chooses, among those whose scores are for or against y.

    For texts, which come in data sets, among those that need at most four passes through the model.
    """
    places = ranks(runs, TEXTS if of == "texts" else IMAGES, "choice", SIGNED).mean()
    return places[[name for name in places.index if name in _candidates(of)]].idxmin()


def ties_with_first(runs: pd.DataFrame, of: str, method: str) -> bool:
    """Whether the mean place of a method is that of the first one, or inside its interval."""
    places = ranks(runs, TEXTS if of == "texts" else IMAGES, "choice", SIGNED)
    best = places[first(runs, of)]
    return places[method].mean() <= max(best.mean(), *interval(best))


def _candidates(of: str) -> list[str]:
    """Methods that may become the default: not the one whose operation the curves repeat, and fast ones for texts."""
    return [name for name in SIGNED if name != REPEATED and (of == "images" or METHODS[name].cost in FAST)]


def signs(runs: pd.DataFrame) -> str:
    """The human sign of signed methods on SST-2, by model, over both halves."""
    runs = where(runs, task="sst2")
    present = [name for name in MODELS if not where(runs, model=name).empty]
    rows = []
    for method, found in _by_method(runs):
        cells = [_cell(_halves(where(found, model=name)), "human_sign") for name in present]
        if any(cells):
            rows.append([method, *cells])
    return markdown(["method", *(MODELS[name] for name in present)], rows)


def _halves(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per seed, the mean of both halves."""
    return runs.groupby("seed").mean(numeric_only=True).reset_index()


def tables(runs: pd.DataFrame) -> str:
    """The tables of all tasks and models, under headings."""
    parts = [
        f"## {TASKS[task].title}, {MODELS[name]}\n\n{found}"
        for task in TASKS
        for name in MODELS
        if (found := table(runs, task, name))
    ]
    return "\n\n".join(parts)
