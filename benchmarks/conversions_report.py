"""Table and figures of benchmarks/conversions.py, from results/conversions/runs.jsonl.

    python benchmarks/conversions_report.py

Writes results/conversions/README.md, and for each task a figure of accuracy against what the negative coefficients are
worth.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from conversions import RESULTS_FILE, TASKS, VARIANTS, finished_runs
from matplotlib.figure import Figure

from hf_bidir.common.files import replacing
from hf_bidir.common.statistics import difference_interval, mean_and_deviation

TICKS = (-30, -10, -5, -2, -1, 0, 1, 2, 5, 10)
NAMES = {"sst2": "SST-2", "ag_news": "AG News (9,977 of its 120,000 texts)", "imdb": "IMDB (4,000 training texts)"}
HEADER = (
    *("variant", "runs", "accuracy", "difference to softmax", "hidden-state error", "negative"),
    *("cost of negatives", "cost of positive mass", "worth", "minutes of healing"),
)
HEADING = """# Conversions of MiniLM: accuracy, and what negative coefficients are worth

`python benchmarks/conversions.py {tasks} --data-dir DATA --model MINILM`, then `python
benchmarks/conversions_report.py`. Accuracy in percent, mean ± standard deviation over the runs; its difference to
softmax with the 95 % t interval over seeds of fine-tuning, which both share (means over healings; none for one seed).
The hidden-state error is the mean relative squared error of a student's layers before fine-tuning. *Negative* is the
share of coefficients below 0 among those of magnitude over 1e-3. The two costs are accuracy, in points, that is lost
when negative coefficients are set to 0, and when as much positive mass of each query, at random, is removed. *Worth*
is the first minus the second."""


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    runs, folder = grouped(finished_runs()), RESULTS_FILE.parent
    tasks = dict.fromkeys(task for task, _, _ in runs)
    lines = [HEADING.format(tasks=" ".join(tasks))]
    for task in tasks:
        for split in dict.fromkeys(split for one, split, _ in runs if one == task):
            chosen = {variant: found for (one, part, variant), found in runs.items() if (one, part) == (task, split)}
            draw(chosen, f"{NAMES[task]}, {split} data", folder / f"{task}-{split}.png")
            lines += [f"## {NAMES[task]}, {split} data", table(chosen), f"![Accuracy and worth]({task}-{split}.png)"]
    with replacing(folder / "README.md") as temporary:
        temporary.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    print("\n\n".join(lines))


def grouped(runs: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """The runs by task, split and variant, in the order of `TASKS` and `VARIANTS`."""
    found = defaultdict(list)
    for run in runs:
        found[run["task"], run["split"], run["variant"]].append(run)
    order = {name: place for place, name in enumerate([*TASKS, *VARIANTS])}
    return dict(sorted(found.items(), key=lambda item: (order[item[0][0]], item[0][1] == "test", order[item[0][2]])))


def costs(run: dict[str, Any]) -> tuple[float, float]:
    """Accuracy lost without negative coefficients, and without as much positive mass, in points."""
    names = ("accuracy_without_negatives", "accuracy_without_positive_mass")
    return tuple(100 * (run["accuracy"] - run[name]) for name in names)


def worth(run: dict[str, Any]) -> float:
    negatives, positives = costs(run)
    return negatives - positives


def by_seed(runs: list[dict[str, Any]]) -> dict[int, float]:
    """The accuracy of each seed of fine-tuning in percent, a mean over healings."""
    seeds = sorted({run["seed"] for run in runs})
    return {seed: mean(100 * run["accuracy"] for run in runs if run["seed"] == seed) for seed in seeds}


def difference(runs: list[dict[str, Any]], softmax: list[dict[str, Any]]) -> str:
    """The difference of accuracies over the seeds that both have, with its interval."""
    ours, theirs = by_seed(runs), by_seed(softmax)
    shared = sorted(ours.keys() & theirs.keys())
    if not shared or runs is softmax:
        return "–"
    pairs = [ours[seed] for seed in shared], [theirs[seed] for seed in shared]
    interval = difference_interval(*pairs, paired=True)
    return f"{mean(pairs[0]) - mean(pairs[1]):+.1f}" + (
        f" [{interval[0]:+.1f}, {interval[1]:+.1f}]" if interval else ""
    )


def table(variants: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for name, runs in variants.items():
        errors = [100 * run["relative_error"] for run in runs if "relative_error" in run]
        minutes = [run["healing_minutes"] for run in runs if "healing_minutes" in run]
        lost, control = zip(*map(costs, runs), strict=True)
        rows.append([
            VARIANTS[name].what,
            str(len(runs)),
            mean_and_deviation([100 * run["accuracy"] for run in runs]),
            difference(runs, variants.get("softmax", [])),
            f"{mean(errors):.1f} %" if errors else "–",
            f"{100 * mean(run['negative_share'] for run in runs):.0f} %",
            f"{mean(lost):.1f}",
            f"{mean(control):.1f}",
            mean_and_deviation([worth(run) for run in runs]),
            f"{mean(minutes):.1f}" if minutes else "–",
        ])  # fmt: skip
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(variants: dict[str, list[dict[str, Any]]], title: str, path: Path) -> None:
    """Accuracy against worth, a numbered point for each variant; the numbers are named beside the panel."""
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    panel = figure.subplots()
    for number, (name, runs) in enumerate(variants.items(), 1):
        place = mean(worth(run) for run in runs), 100 * mean(run["accuracy"] for run in runs)
        style = {"color": "black", "marker": "*"} if name == "softmax" else {"color": f"C{number % 10}", "marker": "o"}
        panel.scatter(*place, s=40, label=f"{number}  {VARIANTS[name].what}", **style)
        panel.annotate(str(number), place, (4, 4), textcoords="offset points", fontsize=8)
    # one variant can be far off; between -2 and 2 the axis is linear
    panel.set_xscale("symlog", linthresh=2)
    left, right = panel.get_xlim()
    panel.set_xticks(shown := [tick for tick in TICKS if left <= tick <= right], [f"{tick:+d}" for tick in shown])
    panel.set(title=title, xlabel="worth of the negative coefficients, points", ylabel="accuracy, %")
    panel.axvline(0, color="black", linewidth=0.5)
    figure.legend(loc="outside right upper", fontsize=7)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110)


if __name__ == "__main__":
    main()
