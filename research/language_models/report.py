"""Tables and figure of run.py, from results/language_model.csv.

    python -m research.language_models.report

Draws the losses during training. `make tables` makes the tables.
"""

from itertools import product
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from benchmarks.runs import check_runs, comparison, markdown, read_runs, spread, where
from benchmarks.seeds import TESTED, holm
from research import save_figure
from research.language_models.run import ARMS, BITS, CURVE_POINTS, FILE, SIZES, TOKENS, best_rate
from research.runs import command_line

RATES = (0.001, 0.002, 0.004, 0.008)
RATE_HEADER = ("rate 0.001", *map(str, RATES[1:]))
COLUMNS = {  # of the tables: heading and digits
    "curve_10": ("loss at 10 %", 3),
    "kurtosis": ("kurtosis", 2),
    "largest": ("largest activation", 1),
    "first_share": ("on the first token", 3),
    "negative_share": ("negative", 3),
    **{f"loss_{bits}_bits": (f"{bits} bits", 3) for bits in BITS},
}


def main() -> None:
    command_line(__doc__).parse_args()
    file = FILE.with_suffix(".png")
    draw(where(read_runs(FILE), tokens=TOKENS), file)
    print(f"saved: {file}")


def table(runs: DataFrame) -> str:
    """Each attention at its best learning rate, over seeds; losses are compared with those of softmax."""
    runs = where(runs, tokens=TOKENS)
    best = {(size, arm): at_best_rate(runs, size, arm) for size, arm in arms_of(runs)}
    check_runs(pd.concat(best.values()), ["size", "arm"], 1)
    tests = holm({pair: comparison(rows, best[pair[0], "softmax"], "loss") for pair, rows in best.items()})
    lines = []
    for (size, arm), rows in best.items():
        compared = [""] * len(TESTED) if arm == "softmax" else tests[size, arm].cells(3)
        first = [size, arm, f"{rows['rate'].iloc[0]:g}", str(len(rows)), spread(rows, "loss", digits=3), *compared]
        lines.append(first + [spread(rows, column, digits=digits) for column, (_, digits) in COLUMNS.items()])
    header = ["size", "attention", "rate", "seeds", "loss", *TESTED]
    return markdown([*header, *(heading for heading, _ in COLUMNS.values())], lines)


def largest(runs: DataFrame) -> str:
    """The largest activation at every learning rate, seed 0, the best rate in bold."""
    rows = [[size, arm, *_by_rate(runs, size, arm, "largest", 1)] for size in SIZES for arm in ("softmax", "TanhMax")]
    return markdown(["size", "attention", *RATE_HEADER], rows)


def controls(runs: DataFrame) -> str:
    """Softmax, TanhMax and controls at every learning rate in the small size, seed 0, the best rate in bold."""
    shares = {
        "softmax": ("softmax", " "),
        "TanhMax": ("TanhMax", " "),
        "off-by-one softmax": ("off-by-one softmax, `e^s / (1 + Σ e^s)`", "a head can attend to nothing"),
        "softmax / 10": ("softmax / 10", "coefficients are small, sums below 1"),
        "softmax − mean": ("softmax − its mean", "signs, sums near 0, small at first"),
    }
    rows = []
    for arm, (name, what) in shares.items():
        start = where(runs, tokens=TOKENS, size="small", arm=arm, rate=0.004, seed=0)["curve_10"]
        rows.append([name, what, *_by_rate(runs, "small", arm, "loss", 3), f"{start.item():.3f}"])
    after = "after 10 % of the tokens, rate 0.004"
    return markdown(["attention", "what it shares with TanhMax", *RATE_HEADER, after], rows)


def _by_rate(runs: DataFrame, size: str, arm: str, column: str, digits: int) -> list[str]:
    runs, cells = where(runs, tokens=TOKENS, size=size, arm=arm, seed=0), []
    for rate in RATES:
        values = where(runs, rate=rate)[column]
        bold = "**" if rate == best_rate(runs, size, arm) else ""
        cells.append(f"{bold}{values.item():.{digits}f}{bold}" if len(values) else "")
    return cells


def arms_of(runs: DataFrame) -> list[tuple[str, str]]:
    """The sizes and attentions that have runs, in the order of the tables."""
    return [pair for pair in product(SIZES, ARMS) if not where(runs, size=pair[0], arm=pair[1]).empty]


def at_best_rate(runs: DataFrame, size: str, arm: str) -> DataFrame:
    return where(runs, size=size, arm=arm, rate=best_rate(runs, size, arm))


def draw(runs: DataFrame, path: Path) -> None:
    """The difference of the loss to softmax during training, each with its best rate, over the seeds of both."""
    figure = Figure(figsize=(5.5 * len(SIZES), 3.6), layout="constrained")
    columns = [f"curve_{percent}" for percent in CURVE_POINTS]
    for panel, size in zip(figure.subplots(1, len(SIZES)), SIZES, strict=True):
        softmax, rate = at_best_rate(runs, size, "softmax").set_index("seed"), best_rate(runs, size, "softmax")
        panel.axhline(0, color="black", linewidth=1)
        for arm in [arm for of, arm in arms_of(runs) if of == size and arm != "softmax"]:
            ahead = (at_best_rate(runs, size, arm).set_index("seed")[columns] - softmax[columns]).dropna()
            label = f"{arm} (rate {best_rate(runs, size, arm):g}, {len(ahead)} seed{'s' * (len(ahead) > 1)})"
            panel.plot([percent / 100 * TOKENS / 1e6 for percent in CURVE_POINTS], ahead.mean(), label=label)
        parameters = softmax["parameters"].iloc[0] / 1e6
        panel.set(title=f"{parameters:.1f} million parameters; softmax with rate {rate:g} is 0")
        panel.set(xlabel="million tokens", ylabel="loss − loss of softmax (nats)")
        panel.legend(fontsize=8)
    save_figure(figure, path)


if __name__ == "__main__":
    main()
