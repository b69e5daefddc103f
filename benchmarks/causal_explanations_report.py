"""Table of benchmarks/causal_explanations.py, and the order of methods that the default of causal models follows."""

import pandas as pd

from benchmarks.causal_explanations import RANDOM
from benchmarks.runs import markdown, where
from hf_bidir.common.statistics import Comparison, compare, mean_in_interval
from hf_bidir.explain import METHODS

FALL, REPEATED, FAST = "deleted", "erasure-token", "1 backward"
FALLS = ("deleted", "replaced", "masked", "deleted_after")


def by_prompt(runs: pd.DataFrame, half: str | None = None) -> pd.DataFrame:
    """The measures of each method and prompt, of one half of the prompts or all; random scores: mean over seeds."""
    runs = runs if half is None else where(runs, half=half)
    return runs.groupby(["method", "prompt"]).mean(numeric_only=True)


def table(runs: pd.DataFrame) -> str:
    """All methods in the order of the half that chooses; means over prompts with their 95 % t interval."""
    chosen, reported, whole = (by_prompt(runs, half) for half in ("choice", "report", None))
    rows = []
    for method in chosen[FALL].groupby("method").mean().sort_values(ascending=False).index:
        own, cost = whole.loc[method], METHODS[method].cost if method in METHODS else ""
        first = f"{100 * own['first'].mean():.0f}" if method != RANDOM else ""
        total = f"{100 * own['total'].mean():.0f}" if method != RANDOM and not _unsigned(method) else ""
        missed = f"{100 * own['missed'].median():.0f}" if own["missed"].notna().any() else ""
        falls = [mean_in_interval(list(reported.loc[method][fall]), 1) for fall in FALLS]
        passes = f"{own['forward_passes'].median():.1f}" if method != RANDOM else ""
        name = method + " \\*" * (method == REPEATED)
        rows.append([name, f"{chosen.loc[method][FALL].mean():.1f}", *falls, first, total, missed, cost, passes])
    header = [
        *("method", "choice: deleted", "deleted", "replaced", "masked", "deleted, first token stays"),
        *("first token, %", "sum, % of y", "missed, %", "passes through the model", "time, in forward passes"),
    ]
    return markdown(header, rows)


def _unsigned(method: str) -> bool:
    return method in METHODS and not METHODS[method].explains_output


def first(runs: pd.DataFrame, fast: bool = False) -> str:
    """The method of the largest fall on the half that chooses; not the one whose operation the measure repeats.

    Args:
        fast: among those of a single backward pass.
    """
    found = by_prompt(runs, "choice")[FALL].groupby("method").mean()
    names = [name for name in found.index if name in METHODS and METHODS[name].explains_output and name != REPEATED]
    return found[[name for name in names if not fast or METHODS[name].cost == FAST]].idxmax()


def difference(runs: pd.DataFrame, method: str, other: str, fall: str = FALL) -> Comparison:
    """The fall by one method minus that by another, paired by prompt, on the half that reports."""
    found = by_prompt(runs, "report")[fall]
    return compare(list(found.loc[method]), list(found.loc[other]), paired=True)


def effect_of_first(runs: pd.DataFrame, method: str) -> Comparison:
    """The fall with the first token in the ranking minus that without it, over all prompts."""
    found = by_prompt(runs).loc[method]
    return compare(list(found[FALL]), list(found[f"{FALL}_after"]), paired=True)
