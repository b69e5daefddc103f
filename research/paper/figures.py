"""The paper's figures from fair runs: scores and coefficients by polarity, histograms of tau, violins of changes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hf_bidir.common.files import save_figure
from hf_bidir.explain.draw.colors import COLORS
from research.paper.cells import Cell
from research.paper.measures import WORD_SUMS

SHOWN = ("softmax", "tanhmax")
POLARITIES = {0: ("neutral", "0.7", "."), 1: ("positive", COLORS(0.95), "+"), -1: ("negative", COLORS(0.05), "_")}


def draw_all(
    name: str, title: str, variants: Mapping[str, Sequence[Cell]], root: Path, polarity: Mapping[str, int]
) -> None:
    """Write the figures of one experiment for the first seed of each measured variant.

    Args:
        name, title: name and title of the experiment.
        variants: the cells of each variant, by seed.
        root: the folder of the figures.
        polarity: 1 or -1 by word; words that are missing are neutral. If empty, no scatter is drawn.
    """
    measured = {variant: cells[0].measures for variant, cells in variants.items() if cells[0].measures}
    figures = {
        "tau": histograms(title, measured),
        "change": violins(title, measured),
        **({"polarity": scatter(title, measured, polarity)} if polarity else {}),
    }
    save_all(name, figures, root)


def save_all(name: str, figures: Mapping[str, Figure], root: Path) -> None:
    """Write each figure to NAME-KIND.png in `root`."""
    for kind, figure in figures.items():
        save_figure(figure, root / f"{name}-{kind}.png", dpi=90)


def scatter(title: str, measured: Mapping[str, dict], polarity: Mapping[str, int]) -> Figure:
    """Draw each word at its mean score and its mean oriented coefficient, softmax beside TanhMax."""
    shown = [variant for variant in SHOWN if variant in measured]
    figure = Figure(figsize=(5 * max(len(shown), 1), 3.6), layout="constrained")
    for panel, variant in zip(figure.subplots(1, max(len(shown), 1), squeeze=False)[0], shown, strict=False):
        words = {word: values for word, values in measured[variant]["words"].items() if not word.startswith("[")}
        for sign, (kind, color, marker) in POLARITIES.items():
            rows = [dict(zip(WORD_SUMS, v, strict=True)) for word, v in words.items() if polarity.get(word, 0) == sign]
            scores, coefficients = ([row[name] / row["count"] for row in rows] for name in ("score", "coefficient"))
            panel.scatter(scores, coefficients, s=25, color=color, marker=marker, label=f"{kind} words")
        panel.axhline(0, color="black", linewidth=0.5)
        panel.set(title=f"{title}, {variant}", xlabel="mean score", ylabel="mean oriented coefficient, g · a")
        panel.legend(fontsize=7)
    return figure


def histograms(title: str, measured: Mapping[str, dict]) -> Figure:
    """Draw Kendall's tau of each text, for coefficients and contributions against gradients and deletion."""
    kinds = {
        "tau_|a|_gradient": "|a| and |gradient|",
        "tau_au_gradient": "a·u and gradient",
        "tau_|a|_erasure": "|a| and |deletion|",
        "tau_au_erasure": "a·u and deletion",
    }
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True)
    for panel, (key, label) in zip(panels, kinds.items(), strict=True):
        for variant, color in zip(SHOWN, ("C0", "C1"), strict=True):
            values = [value for value in measured.get(variant, {}).get(key, []) if value is not None]
            options = {"bins": np.linspace(-1, 1, 21), "color": color}
            panel.hist(values, alpha=0.3, **options)
            panel.hist(values, histtype="step", linewidth=1.5, label=variant, **options)  # visible behind the other
        # no labels at the ends, where those of neighbouring panels would collide
        panel.set(title=label, xlabel="Kendall's tau", xlim=(-1, 1), xticks=(-0.5, 0, 0.5))
    panels[0].set_ylabel("texts")
    figure.suptitle(title)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=9)
    return figure


def violins(title: str, measured: Mapping[str, dict]) -> Figure:
    """Draw how far the prediction of each text moves when coefficients are permuted or drawn at random."""
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    for panel, kind in zip(figure.subplots(1, 2, sharey=True), ("permutation", "randomisation"), strict=True):
        rows = {variant: found[kind] for variant, found in measured.items() if found.get(kind)}
        if rows:
            panel.violinplot(list(rows.values()), showmedians=True)
            panel.set_xticks(range(1, len(rows) + 1), list(rows), fontsize=8)
        panel.set(title=f"{title}: {kind}", ylim=(0, 1))
    figure.axes[0].set_ylabel("total variation of the prediction")
    return figure
