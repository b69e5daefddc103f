"""Table and figures of run.py, from results/conversions.csv.

    python -m research.conversions.report

Draws a figure for each task: accuracy against what the negative coefficients are worth, of the runs with the versions
of the softmax run. `make tables` makes the tables.
"""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from pandas import DataFrame

from benchmarks.runs import check_runs, comparison, markdown, read_runs, spread, where
from benchmarks.seeds import TESTED, Comparison, holm
from hf_bidir.common.files import save_figure
from research.conversions.run import FILE, TASKS, VARIANTS
from research.runs import command_line

PARTS = ("negatives", "positive_mass", "weaker_sign")
TICKS = (-30, -10, -5, -2, -1, 0, 1, 2, 5, 10, 30)
ENCODER = "encoder"  # the variant that starts from the committed encoder
LINEAR = 2  # between -2 and 2 points the axes of costs are linear: some variants are far off
COLUMNS = {  # of the table: heading, factor and digits
    "relative_error": ("hidden-state error", 100, 1),
    "negative_share": ("negative", 100, 0),
    "cost_of_negatives": ("cost of negatives", 1, 1),
    "cost_of_positive_mass": ("cost of positive mass", 1, 1),
    "worth": ("worth", 1, 1),
    "cost_of_weaker_sign": ("cost of the weaker sign", 1, 1),
    "human_sign": ("human sign", 100, 1),
    "healing_minutes": ("minutes", 1, 1),
}


def main() -> None:
    command_line(__doc__).parse_args()
    for (task, split, _), runs in read_runs(FILE).groupby(["task", "split", "versions"]):
        if "softmax" in set(runs["variant"]):
            file = FILE.with_name(f"{task}-{split}.png")
            draw(with_costs(runs), f"{TASKS[task].title}: {split} data", file)
            print(f"saved: {file}")


def table(runs: DataFrame, task: str, split: str, seeds: int | Mapping[str, int], versions: str | None = None) -> str:
    """The variants measured on a split of a task; `versions` are those of the rows, where a task has several.

    `seeds` is how many each variant must have, of fine-tuning, or of healing where all share one softmax checkpoint.
    """
    chosen = {"task": task, "split": split} | ({"versions": versions} if versions else {})
    runs = with_costs(where(runs[runs["variant"] != ENCODER], **chosen))
    check_runs(runs if runs["seed"].any() else runs.assign(seed=runs["healing"]), ["variant"], seeds)
    compared = differences(runs)
    rows = [
        [
            VARIANTS[variant].what,
            str(len(found)),
            spread(found, "accuracy", 100),
            *(compared[variant].cells() if variant in compared else [""] * len(TESTED)),
            *(spread(found, column, factor, digits) for column, (_, factor, digits) in COLUMNS.items()),
        ]
        for variant, found in by_variant(runs)
    ]
    return markdown(["variant", "runs", "accuracy", *TESTED, *(heading for heading, *_ in COLUMNS.values())], rows)


def with_costs(runs: DataFrame) -> DataFrame:
    """The runs with the accuracy that each loses without a part of its coefficients, in points."""
    costs = {f"cost_of_{part}": 100 * (runs["accuracy"] - runs[f"accuracy_without_{part}"]) for part in PARTS}
    return runs.assign(**costs, worth=costs["cost_of_negatives"] - costs["cost_of_positive_mass"])


def overview(runs: DataFrame) -> str:
    """The main variants on test data: accuracy, its difference from softmax, and the signs."""
    signs, free = "after-tanhmax-signs", "after-tanhmax-300"
    default = "TanhMax (the default)"
    named = {signs: "TanhMax, with the penalties of that time", free: "TanhMax, `--no-keep-signs`"}
    balanced = {"after-balanced-300": "balanced, `--attn-activation balanced --negative-mass 1 --no-keep-signs`"}
    shown = {
        "sst2": ("SST-2", {signs: default, free: named[free]} | balanced),
        "ag_news": ("AG News, a subset", {signs: default}),
        "imdb": ("IMDB, a subset", {signs: default}),
        "fashion_mnist": ("Fashion-MNIST, a ViT", {signs: default, free: named[free]}),
        "imdb_lm": ("IMDB, a language model's next tokens", {free: named[free], signs: named[signs]}),
    }
    runs, rows = with_costs(where(runs, split="test")), []
    for task, (data, variants) in shown.items():
        softmax = where(runs, task=task, variant="softmax")
        for variant, name in ({"softmax": "softmax"} | variants).items():
            found = where(runs, task=task, variant=variant)
            difference = comparison(found, softmax, "accuracy", 100).text() if variant != "softmax" else ""
            first = [data if variant == "softmax" else "", name, str(len(found)), spread(found, "accuracy", 100)]
            share = f"{spread(found, 'negative_share', 100, 0)} %"
            rows.append([*first, difference, share, spread(found, "cost_of_negatives")])
    return markdown(["data", "variant", "runs", "accuracy", "difference", "negative", "cost"], rows)


def encoder(runs: DataFrame) -> str:
    """MiniLM beside the committed healed encoder, both fine-tuned: accuracy, difference and signs, by task."""
    runs, rows = with_costs(where(runs, split="test")), []
    for task, data in TASKS.items():
        softmax, healed = (where(runs, task=task, variant=name) for name in ("softmax", ENCODER))
        if len(healed):
            shared = softmax[softmax["seed"].isin(healed["seed"])]
            difference = comparison(healed, shared, "accuracy", 100)
            accuracies = [spread(found, "accuracy", 100) for found in (shared, healed)]
            signs = [f"{spread(healed, 'negative_share', 100, 0)} %", spread(healed, "cost_of_negatives")]
            rows.append([data.title, str(len(healed)), *accuracies, difference.text() if difference else "", *signs])
    return markdown(["data", "seeds", "softmax", "minilm-tanhmax", "difference", "negative", "cost"], rows)


def by_variant(runs: DataFrame) -> list[tuple[str, DataFrame]]:
    """The runs of each variant, in the order of `VARIANTS`."""
    return sorted(runs.groupby("variant"), key=lambda group: list(VARIANTS).index(group[0]))


def differences(runs: DataFrame) -> dict[str, Comparison]:
    """Compare the accuracy of each variant with that of softmax, in points; corrected together.

    Paired by the seed of fine-tuning, each the mean over its healings; over healings where all share one softmax model.
    """
    softmax, found = where(runs, variant="softmax"), {}
    for variant, rows in by_variant(runs[runs["variant"] != "softmax"]):
        if len(softmax) > 1:
            rows = rows.groupby("seed", as_index=False)["accuracy"].mean()
        if (one := comparison(rows, softmax, "accuracy", 100)) is not None:
            found[variant] = one
    return holm(found)


def draw(runs: DataFrame, title: str, path: Path) -> None:
    """Accuracy against worth and against the cost of the weaker sign, a numbered point for each variant."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, (variant, found) in enumerate(by_variant(runs), 1):
        style = {"color": "black", "marker": "*"} if variant == "softmax" else {"color": f"C{number % 10}"}
        for panel, column in ((left, "worth"), (right, "cost_of_weaker_sign")):
            place = found[column].mean(), 100 * found["accuracy"].mean()
            if found[column].notna().any():
                label = f"{number}  {VARIANTS[variant].what}" if panel is left else None
                panel.scatter(*place, s=40, label=label, **style)
                panel.annotate(str(number), place, (4, 4), textcoords="offset points", fontsize=8)
    for panel, label in ((left, "worth of the negative coefficients"), (right, "cost of the weaker sign")):
        panel.set_xscale("symlog", linthresh=LINEAR)
        low, high = panel.get_xlim()
        panel.set_xticks(shown := [tick for tick in TICKS if low <= tick <= high], [f"{tick:+d}" for tick in shown])
        panel.axvline(0, color="black", linewidth=0.5)
        panel.set_xlabel(f"{label}, points")
    left.set_ylabel("accuracy, %")
    figure.suptitle(title, fontsize=10)
    figure.legend(loc="outside lower center", ncols=2, fontsize=7)
    save_figure(figure, path, dpi=110)


if __name__ == "__main__":
    main()
