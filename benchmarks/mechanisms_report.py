"""The tables of benchmarks/results/mechanisms.md, from mechanisms.csv."""

from mechanisms import KEY, LONGER, MECHANISMS, NO_ATTENTION
from mechanisms_images import SIDES
from pandas import DataFrame

from hf_bidir.common.runs import PAIR, check_runs, comparison, comparisons, markdown, spread, where
from hf_bidir.common.statistics import TESTED, Comparison, holm

SEEDS, SCORE = 3, {"score": 100}
IMAGES = tuple(SIDES)


def mechanisms(runs: DataFrame) -> str:
    """TanhMax and softmax on dates, sorting and texts."""
    return activations(runs[~runs["task"].isin([*IMAGES, *LONGER])])


def images(runs: DataFrame) -> str:
    """TanhMax and softmax on images."""
    return activations(runs[runs["task"].isin(IMAGES)])


def compared(runs: DataFrame) -> dict[tuple, Comparison]:
    """TanhMax minus softmax of all mechanisms, by task, mechanism and metric; corrected together."""
    return comparisons(runs[runs["mechanism"] != NO_ATTENTION], ["task", "mechanism"], "activation", PAIR, SCORE)


def activations(runs: DataFrame) -> str:
    check_runs(runs, KEY[:3], SEEDS)
    rows, tests = [], compared(runs)
    for task, mechanisms in MECHANISMS.items():
        for mechanism, changed in mechanisms.items():
            if (task, mechanism, "score") in tests:
                pair = [where(runs, task=task, mechanism=mechanism, activation=one) for one in PAIR]
                cells = [spread(of, "score", 100) for of in pair] + tests[task, mechanism, "score"].cells()
                rows.append([task, mechanism, _options(mechanism, changed), *cells])
    return markdown(["task", "mechanism", "changed", "TanhMax", "softmax", *TESTED], rows)


def lengths(runs: DataFrame) -> str:
    """TanhMax, softmax and no attention by the length of the source."""
    check_runs(runs, KEY[:3], SEEDS)
    tests = compared(runs[runs["task"].isin(LONGER)])
    rows = []
    for task, length in LONGER.items():
        found = [where(runs, task=task, activation=one) for one in (*PAIR, "none")]
        scores = [spread(of, "score", 100) for of in found]
        rows.append([task.split("-")[0], str(length), *scores, *tests[task, "general", "score"].cells()])
    return markdown(["task", "words", "TanhMax", "softmax", NO_ATTENTION, *TESTED], rows)


def gains(runs: DataFrame) -> str:
    """Attention minus no attention, by task, length and activation."""
    check_runs(runs, KEY[:3], SEEDS)
    tests = {}
    for task in LONGER:
        without = where(runs, task=task, activation="none")
        for activation in PAIR:
            if found := comparison(where(runs, task=task, activation=activation), without, "score", 100):
                tests[task, activation] = found
    rows = [[*task.split("-"), activation, *one.cells()] for (task, activation), one in holm(tests).items()]
    return markdown(["task", "words", "activation", *TESTED], rows)


def _options(mechanism: str, changed: dict[str, object]) -> str:
    if mechanism == "window":
        return "a BERT of three layers, `--attn_scope window --attn_window 4`"
    given = [f"--{name}" if value is True else f"--{name} {value}" for name, value in changed.items()]
    return f"`{' '.join(given)}`" if given else ""
