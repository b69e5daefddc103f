"""Figures: scores by polarity, histograms of tau, violins of changes; curves and overlays of deep models."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from hf_bidir.common.files import save_figure
from hf_bidir.explain import load_checkpoint
from hf_bidir.explain.draw.figures import COLORS, Scale, as_array, overlay
from hf_bidir.explain.forward import patch_grid
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.data.sources import read_table
from research.paper.cells import Cell
from research.paper.experiments import Experiment, Settings
from research.paper.measures import CHANCE, NEUTRAL_GRADE, RANKINGS, SHARES, WORD_SUMS, scores_of
from research.synthetic import SETS

POLAR_FROM = 0.5  # minimum mean distance from the neutral grade
SHOWN = ("softmax", "tanhmax")
IMAGES, OVERLAYS = 6, ("contributions", "grad-cam", "rollout")
AXES = {
    "deletion": "share of tokens removed, top-ranked first",
    "insertion": "share of tokens kept, top-ranked first",
}
POLARITIES = {0: ("neutral", "0.7", "."), 1: ("positive", COLORS(0.95), "+"), -1: ("negative", COLORS(0.05), "_")}


def polarity_of_words(experiment: Experiment, graded: Path | None) -> dict[str, int]:
    """1 or -1 for every polar word, by construction or by people; other words are neutral. Empty if unknown.

    `graded` is a file with the columns `tokens` and `token_labels`, 0 to 4, or None.
    """
    if experiment.synthetic:
        words = SETS[experiment.synthetic].words()
        return {word: 1 if word.startswith("pos") else -1 for word in words if not word.startswith("word")}
    if graded is None:
        return {}
    grades = defaultdict(list)
    for row in read_table(str(graded)):
        for word, label in zip(row["tokens"], row["token_labels"], strict=True):
            grades[word.lower()].append(label - NEUTRAL_GRADE)
    means = {word: np.mean(values) for word, values in grades.items()}
    return {word: int(np.sign(mean)) for word, mean in means.items() if abs(mean) >= POLAR_FROM}


def draw(experiment: Experiment, variants: Mapping[str, Sequence[Cell]], settings: Settings) -> None:
    """Save NAME-KIND.png in the folder of results, of the first seed of each measured variant of an experiment."""
    cells = {variant: of[0] for variant, of in variants.items() if of[0].measures}
    title, measured = experiment.title, {variant: cell.measures for variant, cell in cells.items()}
    figures = {}
    if not experiment.deep:
        figures = {"tau": histograms(title, measured), "change": violins(title, measured)}
        if polarity := polarity_of_words(experiment, settings.graded(experiment)):
            figures["polarity"] = scatter(title, measured, polarity)
    elif cells:
        figures["curves"] = curves(title, measured)
        if experiment.kind == "images":
            test = settings.root / "data" / experiment.name / "test.parquet"
            figures["overlays"] = overlays({variant: cell.run for variant, cell in cells.items()}, test)
    for kind, figure in figures.items():
        save_figure(figure, settings.root / f"{experiment.name}-{kind}.png", dpi=90)


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


def curves(title: str, measured: Mapping[str, dict]) -> Figure:
    """Draw the mean probability of the predicted class by the share of tokens removed or kept, a line per ranking."""
    figure = Figure(figsize=(4 * 2, 3 * len(measured) + 0.8), layout="constrained")
    panels = figure.subplots(len(measured), 2, sharex=True, sharey=True, squeeze=False)
    for row, (variant, found) in zip(panels, measured.items(), strict=True):
        for panel, how in zip(row, ("deletion", "insertion"), strict=True):
            for color, name in enumerate(RANKINGS):  # one colour per ranking in all figures
                style = {"color": "0.6", "linestyle": ":"} if name == CHANCE else {"color": f"C{color}"}
                if curve := found["curves"].get(f"{how} {name}"):
                    panel.plot(SHARES, curve, marker=".", label=name, **style)
            panel.set(title=f"{variant}: {how}", xlabel=AXES[how], ylim=(0, 1.03))
            panel.tick_params(labelbottom=True)
        row[0].set_ylabel("probability of\nthe predicted class")
    figure.suptitle(title)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, title="tokens ranked by", loc="outside lower center", ncols=len(labels), fontsize=8)
    return figure


def overlays(runs: Mapping[str, Path], test: Path) -> Figure:
    """Draw explanations over the first test images, a row per model and method, each image on its own scale."""
    examples = list(read_table(str(test)).select(range(IMAGES)))
    figure = Figure(figsize=(1.6 * IMAGES + 1.2, 2.4 * len(runs) * len(OVERLAYS)), layout="constrained")
    rows = iter(figure.subfigures(len(runs) * len(OVERLAYS), 1, squeeze=False)[:, 0])
    for variant, run in runs.items():
        model, processor = load_checkpoint(run)
        pixels = ImageCollator(processor)(examples)["pixel_values"]
        patches = torch.Size(patch_grid(model, pixels))
        target = model(pixel_values=pixels).logits.argmax(-1)
        names, guesses = model.config.id2label, target.tolist()
        titles = [
            names[guess] if guess == one["label"] else f"{names[guess]}\n(true: {names[one['label']]})"
            for guess, one in zip(guesses, examples, strict=True)
        ]
        for method in OVERLAYS:
            scores = scores_of(model, {"pixel_values": pixels}, method, target)
            grids = scores[:, -patches.numel() :].unflatten(1, patches)
            figure_row = next(rows)
            figure_row.suptitle(f"{variant}: {method}; predicted class, and the true one where it differs", fontsize=9)
            # scores of different images differ by orders of magnitude: on one scale most would look blank
            grids = grids / grids.abs().amax((1, 2), keepdim=True).clamp_min(torch.finfo(grids.dtype).tiny)
            unit = "share of the\nimage's largest"
            grids = as_array(grids)
            scale = Scale.of(grids)
            panels = figure_row.subplots(1, IMAGES)
            for panel, image, grid, title in zip(panels, pixels.mean(1).numpy(), grids, titles, strict=True):
                overlay(panel, image, grid, scale)
                panel.set_title(title, fontsize=9)
            scale.draw(figure_row, unit, ax=list(panels), shrink=0.9)
    return figure
