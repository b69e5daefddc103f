"""Tables of run.py: every measure by method, and the order of methods that the default follows."""

from itertools import product

import pandas as pd

from benchmarks.runs import markdown, where
from benchmarks.seeds import interval, mean_in_interval
from hf_bidir.explain import METHODS
from research.explanations.run import RANDOM
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
REPEATED = "deletion"  # the method whose operation the curves repeat
SIGNED = [name for name, method in METHODS.items() if method.explains_output]
UNSIGNED = [name for name, method in METHODS.items() if not method.explains_output]


def tables(runs: pd.DataFrame) -> str:
    """All methods by task and model on the half that reports, mean over seeds with the 95 % t interval."""
    header, parts = ["method", *(title for title, *_ in MEASURES.values())], []
    for task, model in product(TASKS, MODELS):
        of_methods = _by_method(where(runs, task=task, model=model, half="report"))
        if rows := [[method, *(_cell(seeds, measure) for measure in MEASURES)] for method, seeds in of_methods]:
            parts.append(f"## {TASKS[task].title}, {MODELS[model]}\n\n{markdown(header, rows)}")
    return "\n\n".join(parts)


def _by_method(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(method, seeds) for method in (*METHODS, RANDOM) if not (seeds := where(runs, method=method)).empty]


def _cell(seeds: pd.DataFrame, measure: str) -> str:
    _, scale, digits, _ = MEASURES[measure]
    values = seeds[measure].dropna() if measure in seeds else []
    return mean_in_interval(scale * values, digits) if len(values) else ""


def ranks(runs: pd.DataFrame, tasks: tuple[str, ...], half: str, methods: list[str]) -> pd.DataFrame:
    """The place of each method by seed, from 0 (always the best) to 1 (always the worst).

    Means of ranks within a family of measures, then over families, tasks and models; of measures that all methods have.
    Methods that were not measured in every task are left out.
    """
    runs = runs[runs["task"].isin(tasks) & (runs["half"] == half) & runs["method"].isin(methods)]
    groups = list(runs.groupby(["task", "model", "seed"]))
    common = [name for name in methods if all(name in set(rows["method"]) for _, rows in groups)]
    ranked = []
    for (task, _, seed), rows in groups:
        rows = rows.set_index("method").loc[common].dropna(axis=1)
        places = [
            pd.concat(
                [
                    (rows[measure].rank(ascending=not MEASURES[measure][3]) - 1) / max(1, len(rows) - 1)
                    for measure in measured
                ],
                axis=1,
            ).mean(axis=1)
            for measures in FAMILIES.values()
            if (measured := [measure for measure in measures if measure in rows])
        ]
        ranked.append(pd.concat(places, axis=1).mean(axis=1).to_dict() | {"task": task, "seed": seed})
    return pd.DataFrame(ranked).groupby(["seed", "task"]).mean().groupby("seed").mean() if ranked else pd.DataFrame()


def order(runs: pd.DataFrame, of: str, signed: bool = True) -> str:
    """The methods by their places on the half that chooses, with those on the half that reports, and costs."""
    tasks, methods = (TEXTS if of == "texts" else IMAGES), [*(SIGNED if signed else UNSIGNED), RANDOM]
    chosen, reported = (ranks(runs, tasks, half, methods) for half in ("choice", "report"))
    rows = []
    for method in chosen.mean().sort_values().index:
        rows_of_method = runs[runs["task"].isin(tasks) & (runs["method"] == method)]
        cost = METHODS[method].cost if method in METHODS else ""
        places = [mean_in_interval(half[method], 2) for half in (chosen, reported)]
        name = method + " \\*" * (method == REPEATED)
        rows.append(
            [
                name,
                *places,
                cost,
                f"{rows_of_method['forward_passes'].median():.1f}",
                _cell(rows_of_method, "random_rho"),
            ]
        )
    header = ["method", "choice", "report", "passes through the model", "time, in forward passes", "random weights, ρ"]
    return markdown(header, rows)


def ties_with_first(runs: pd.DataFrame, tasks: tuple[str, ...], method: str) -> bool:
    """Whether the mean place of a signed method on the half that chooses is the best one, or inside its interval.

    The method whose operation the curves repeat is left out.
    """
    places = ranks(runs, tasks, "choice", SIGNED).drop(columns=REPEATED, errors="ignore")
    best = places[places.mean().idxmin()]
    return places[method].mean() <= max(best.mean(), *interval(best))


def signs(runs: pd.DataFrame) -> str:
    """The human sign of signed methods on SST-2, by model, over both halves."""
    runs = where(runs, task="sst2").groupby(["method", "model", "seed"], as_index=False).mean(numeric_only=True)
    present = [name for name in MODELS if not where(runs, model=name).empty]
    rows = [
        [method, *(_cell(where(seeds, model=name), "human_sign") for name in present)]
        for method, seeds in _by_method(runs)
        if seeds["human_sign"].notna().any()
    ]
    return markdown(["method", *(MODELS[name] for name in present)], rows)
