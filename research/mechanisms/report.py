"""The tables of README.md, from results/mechanisms.csv."""

from itertools import product

from pandas import DataFrame

from benchmarks.runs import PAIR, check_runs, comparison, comparisons, markdown, spread, where
from benchmarks.seeds import TESTED, Comparison, holm
from research.mechanisms.data import SIDES
from research.mechanisms.run import KEY, LONGER, MECHANISMS, NO_ATTENTION

SEEDS = 3
TABLES = {  # and their tasks
    "mechanisms": [task for task in MECHANISMS if task not in (*SIDES, *LONGER)],
    "images": [*SIDES],
    "lengths": [*LONGER],
}


def compared(runs: DataFrame, table: str) -> dict[tuple[str, str], Comparison]:
    """TanhMax minus softmax in a table of `TABLES`, by task and mechanism; corrected together."""
    check_runs(runs, KEY[:3], SEEDS)
    runs = runs[runs["task"].isin(TABLES[table]) & (runs["mechanism"] != NO_ATTENTION)]
    tests = comparisons(runs, ["task", "mechanism"], "activation", PAIR, {"score": 100})
    return {(task, mechanism): test for (task, mechanism, _), test in tests.items()}


def activations(runs: DataFrame, table: str) -> str:
    """TanhMax and softmax in a table of `TABLES`."""
    tests, rows = compared(runs, table), []
    for task, mechanism in ((name, mechanism) for name in TABLES[table] for mechanism in MECHANISMS[name]):
        pair = [where(runs, task=task, mechanism=mechanism, activation=activation) for activation in PAIR]
        cells = [spread(of, "score", 100) for of in pair] + tests[task, mechanism].cells()
        rows.append([task, mechanism, _options(mechanism, MECHANISMS[task][mechanism]), *cells])
    return markdown(["task", "mechanism", "changed", "TanhMax", "softmax", *TESTED], rows)


def lengths(runs: DataFrame) -> str:
    """TanhMax, softmax and no attention by the length of the source."""
    tests, rows = compared(runs, "lengths"), []
    for task, length in LONGER.items():
        variants = [where(runs, task=task, activation=name) for name in (*PAIR, "none")]
        scores = [spread(seeds, "score", 100) for seeds in variants]
        rows.append([task.split("-")[0], str(length), *scores, *tests[task, "general"].cells()])
    return markdown(["task", "words", "TanhMax", "softmax", NO_ATTENTION, *TESTED], rows)


def gains(runs: DataFrame) -> str:
    """Attention minus no attention, by task of `LONGER`, length and activation; corrected together."""
    check_runs(runs, KEY[:3], SEEDS)
    tests = {}
    for task, activation in product(LONGER, PAIR):
        pair = [where(runs, task=task, activation=name) for name in (activation, "none")]
        if test := comparison(*pair, "score", 100):
            tests[task, activation] = test
    rows = [[*task.split("-"), activation, *test.cells()] for (task, activation), test in holm(tests).items()]
    return markdown(["task", "words", "activation", *TESTED], rows)


def _options(mechanism: str, changed: dict[str, object]) -> str:
    if mechanism == "window":
        return "a BERT of three layers, `--attn_scope window --attn_window 4`"
    options = [f"--{name}" if value is True else f"--{name} {value}" for name, value in changed.items()]
    return f"`{' '.join(options)}`" if options else ""
