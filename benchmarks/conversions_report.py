"""Tables and figures of benchmarks/conversions.py, from results/conversions/runs.jsonl.

    python benchmarks/conversions_report.py

Writes results/conversions/README.md, and for each task a figure of accuracy against what the negative coefficients are
worth.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from conversions import RESULTS_FILE, TASKS, finished_runs
from conversions_variants import VARIANTS
from matplotlib.figure import Figure

from hf_bidir.common.files import replacing
from hf_bidir.common.statistics import compare, mean_and_deviation

TICKS = (-30, -10, -5, -2, -1, 0, 1, 2, 5, 10, 30)
LINEAR = 2  # between -2 and 2 points the axes of costs are linear: some variants are far off
HEADER = (
    "variant",
    "runs",
    "accuracy",
    "difference to softmax",
    "hidden-state error",
    "negative",
    "cost of negatives",
    "cost of positive mass",
    "worth",
    "cost of the weaker sign",
    "human sign",
    "minutes",
)
HEADING = """# Conversions: accuracy, and what negative coefficients are worth

`python benchmarks/conversions.py {tasks} --data-dir DATA --model MINILM`, with `--split`, `--only`, `--seeds` and
`--healings` as in the tables, then `python benchmarks/conversions_report.py`. All numbers come from
[runs.jsonl](runs.jsonl), one line per run.

- **accuracy**: in percent, mean ± standard deviation over runs. Its **difference to softmax** has a 95 % t interval
  over the seeds of fine-tuning, or of healing where all share one softmax checkpoint. Seeds are paired, and each is a
  mean over healings. One seed gives no interval.
- **hidden-state error**: mean relative squared error of a student's layers, after healing and before any fine-tuning.
- **negative**: share of coefficients below 0 among those of magnitude over 1e-3.
- **cost of negatives**: accuracy, in points, that is lost when negative coefficients are set to 0. **Cost of positive
  mass**: the loss when as much positive mass of each query, at random, is removed. **Worth** is the first minus the
  second. At λ = 1 the sign of a head is arbitrary: negating its keys and values exchanges the two costs without
  changing an output. The worth of these variants depends on the sign convention that they inherit from softmax.
- **cost of the weaker sign**: accuracy that is lost when each head keeps only the sign that matters more to its
  output, by variance. It does not depend on the sign of a head, and is 0 for softmax.
- **human sign**: polar words of SST whose contribution has the sign that people gave the word.
- **minutes** of healing, on two shared cores."""


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    runs, folder = grouped(finished_runs()), RESULTS_FILE.parent
    tasks = dict.fromkeys(task for task, _, _ in runs)
    lines = [HEADING.format(tasks=" ".join(tasks))]
    for task in tasks:
        for split in dict.fromkeys(split for one, split, _ in runs if one == task):
            chosen = {variant: found for (one, part, variant), found in runs.items() if (one, part) == (task, split)}
            title = f"{TASKS[task].title}: {split} data"
            draw(chosen, title, folder / f"{task}-{split}.png")
            lines += [f"## {title}", table(chosen), f"![Accuracy and worth]({task}-{split}.png)"]
    with replacing(folder / "README.md") as temporary:
        temporary.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    print("\n\n".join(lines))


def grouped(runs: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """The runs by task, split and variant, in the order of `TASKS` and `VARIANTS`, validation data first."""
    found = defaultdict(list)
    for run in runs:
        found[run["task"], run["split"], run["variant"]].append(run)
    order = {name: place for place, name in enumerate([*TASKS, *VARIANTS])}
    return dict(sorted(found.items(), key=lambda item: (order[item[0][0]], item[0][1] == "test", order[item[0][2]])))


def cost(part: str) -> Callable[[dict[str, Any]], float]:
    """The accuracy that a run loses without a part of its coefficients, in points."""
    return lambda run: 100 * (run["accuracy"] - run[f"accuracy_without_{part}"])


def worth(run: dict[str, Any]) -> float:
    return cost("negatives")(run) - cost("positive_mass")(run)


def by_seed(runs: list[dict[str, Any]], name: str) -> dict[int, float]:
    """The accuracy of each seed of fine-tuning, or of healing, in percent; a mean over the other."""
    seeds = sorted({run[name] for run in runs})
    return {seed: mean(100 * run["accuracy"] for run in runs if run[name] == seed) for seed in seeds}


def difference(runs: list[dict[str, Any]], softmax: list[dict[str, Any]]) -> str:
    """The mean difference of accuracies, with its interval over the seeds that both have."""
    if runs is softmax or not softmax:
        return "–"
    if len({run["seed"] for run in softmax}) > 1:
        ours, theirs = by_seed(runs, "seed"), by_seed(softmax, "seed")
    else:  # all students come from one softmax model
        ours = by_seed(runs, "healing")
        theirs = dict.fromkeys(ours, 100 * softmax[0]["accuracy"])
    shared = sorted(ours.keys() & theirs.keys())
    return compare([ours[seed] for seed in shared], [theirs[seed] for seed in shared], paired=True).text()


def table(variants: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for name, runs in variants.items():

        def column(field: str, unit: float = 1.0, digits: int = 1, runs: list = runs) -> str:
            values = [unit * run[field] for run in runs if field in run]
            return f"{mean(values):.{digits}f}" if values else "–"

        costs = [mean_and_deviation([cost(part)(run) for run in runs])
                 for part in ("negatives", "positive_mass")]  # fmt: skip
        weaker = [cost("weaker_sign")(run) for run in runs if "accuracy_without_weaker_sign" in run]
        rows.append([
            VARIANTS[name].what,
            str(len(runs)),
            mean_and_deviation([100 * run["accuracy"] for run in runs]),
            difference(runs, variants.get("softmax", [])),
            column("relative_error", 100),
            column("negative_share", 100, 0),
            *costs,
            mean_and_deviation([worth(run) for run in runs]),
            mean_and_deviation(weaker) if weaker else "–",
            column("human_sign", 100),
            column("healing_minutes"),
        ])  # fmt: skip
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(variants: dict[str, list[dict[str, Any]]], title: str, path: Path) -> None:
    """Accuracy against worth and against the cost of the weaker sign, a numbered point for each variant."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, (name, runs) in enumerate(variants.items(), 1):
        style = {"color": "black", "marker": "*"} if name == "softmax" else {"color": f"C{number % 10}", "marker": "o"}
        measured = [run for run in runs if "accuracy_without_weaker_sign" in run]
        for panel, chosen, measure in ((left, runs, worth), (right, measured, cost("weaker_sign"))):
            if chosen:
                place = mean(map(measure, chosen)), 100 * mean(run["accuracy"] for run in runs)
                label = f"{number}  {VARIANTS[name].what}" if panel is left else None
                panel.scatter(*place, s=40, label=label, **style)
                panel.annotate(str(number), place, (4, 4), textcoords="offset points", fontsize=8)
    for panel, label in (
        (left, "worth of the negative coefficients, points"),
        (right, "cost of the weaker sign, points"),
    ):
        panel.set_xscale("symlog", linthresh=LINEAR)
        low, high = panel.get_xlim()
        panel.set_xticks(shown := [tick for tick in TICKS if low <= tick <= high], [f"{tick:+d}" for tick in shown])
        panel.axvline(0, color="black", linewidth=0.5)
        panel.set_xlabel(label)
    left.set_ylabel("accuracy, %")
    figure.suptitle(title, fontsize=10)
    figure.legend(loc="outside lower center", ncols=2, fontsize=7)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110)


if __name__ == "__main__":
    main()
