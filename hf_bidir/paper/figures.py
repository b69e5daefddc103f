"""The paper's own pictures, of fair runs: scores and coefficients by polarity, histograms of tau, violins of change."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hf_bidir.common.files import replacing
from hf_bidir.explain.colors import COLORS
from hf_bidir.paper.cells import Cell
from hf_bidir.paper.measures import WORD_SUMS

SHOWN = ("softmax", "tanhmax")
POLARITIES = {0: ("neutral", "0.7", "."), 1: ("positive", COLORS(0.95), "+"), -1: ("negative", COLORS(0.05), "_")}


def draw_all(
    name: str, title: str, variants: Mapping[str, Sequence[Cell]], root: Path, polarity: Mapping[str, int]
) -> None:
    """Write the pictures of one experiment, of the first seed of every variant that is measured.

    Args:
        name, title: of the experiment.
        variants: the cells of every variant.
        root: where the pictures go.
        polarity: of words: 1, -1, or 0 and missing for neutral ones. Without any there is no scatter.
    """
    measured = {variant: cells[0].measures for variant, cells in variants.items() if cells[0].measures}
    figures = {
        "tau": histograms(title, measured),
        "change": violins(title, measured),
        **({"polarity": scatter(title, measured, polarity)} if polarity else {}),
    }
    save_all(name, figures, root)


def save_all(name: str, figures: Mapping[str, Figure], root: Path) -> None:
    """Write each as NAME-KIND.png into `root`."""
    for kind, figure in figures.items():
        with replacing(root / f"{name}-{kind}.png") as temporary:
            figure.savefig(temporary, dpi=90)


def scatter(title: str, measured: Mapping[str, dict], polarity: Mapping[str, int]) -> Figure:
    """Every word at its mean score and its mean oriented coefficient, softmax beside TanhMax."""
    shown = [variant for variant in SHOWN if variant in measured]
    figure = Figure(figsize=(5 * max(len(shown), 1), 3.6), layout="constrained")
    for panel, variant in zip(figure.subplots(1, max(len(shown), 1), squeeze=False)[0], shown, strict=False):
        words = {word: values for word, values in measured[variant]["words"].items() if not word.startswith("[")}
        for sign, (kind, color, marker) in POLARITIES.items():
            rows = [dict(zip(WORD_SUMS, v, strict=True)) for word, v in words.items() if polarity.get(word, 0) == sign]
            scores, coefficients = ([row[name] / row["count"] for row in rows] for name in ("score", "coefficient"))
            panel.scatter(scores, coefficients, s=25, color=color, marker=marker, label=f"{kind} words")
        panel.axhline(0, color="black", linewidth=0.5)
        panel.set(title=f"{title}, {variant}", xlabel="mean score", ylabel="mean coefficient times g")
        panel.legend(fontsize=7)
    return figure


def histograms(title: str, measured: Mapping[str, dict]) -> Figure:
    """Kendall's tau of every text, of sizes of coefficients and of contributions, with gradients and with deletion."""
    kinds = {
        "tau_|a|_gradient": "sizes of a and of gradient",
        "tau_au_gradient": "a·u, gradient",
        "tau_|a|_erasure": "sizes of a and of deletion",
        "tau_au_erasure": "a·u, deletion",
    }
    figure = Figure(figsize=(14, 3), layout="constrained")
    for panel, (key, label) in zip(figure.subplots(1, len(kinds), sharey=True), kinds.items(), strict=True):
        for variant in SHOWN:
            values = [value for value in measured.get(variant, {}).get(key, []) if value is not None]
            panel.hist(values, bins=np.linspace(-1, 1, 21), alpha=0.6, label=variant)
        panel.set(title=f"{title}: {label}", xlabel="Kendall's tau", xlim=(-1, 1))
    panel.legend(fontsize=8)
    return figure


def violins(title: str, measured: Mapping[str, dict]) -> Figure:
    """How far the answer of every text moves when coefficients are shuffled, and when they are drawn at random."""
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    for panel, kind in zip(figure.subplots(1, 2, sharey=True), ("permutation", "randomisation"), strict=True):
        rows = {variant: found[kind] for variant, found in measured.items() if found.get(kind)}
        if rows:
            panel.violinplot(list(rows.values()), showmedians=True)
            panel.set_xticks(range(1, len(rows) + 1), list(rows), fontsize=8)
        panel.set(title=f"{title}: {kind}", ylabel="total variation of the answer", ylim=(0, 1))
    return figure
