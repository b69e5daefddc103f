"""Figures of models with many layers: curves of deletion and insertion, and explanations over images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from hf_bidir.explain import image_heatmap, load_checkpoint, token_scores
from hf_bidir.explain.record import patch_grid
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.data.sources import read_table
from research.paper.cells import Cell
from research.paper.deep_measures import CHANCE, RANKINGS, SHARES
from research.paper.experiments import Experiment
from research.paper.figures import save_all

IMAGES = 6
OVERLAYS = ("contributions", "grad-cam", "rollout")
AXES = {
    "deletion": "share of tokens removed, top-ranked first",
    "insertion": "share of tokens kept, top-ranked first",
}


def draw_deep(experiment: Experiment, variants: Mapping[str, Sequence[Cell]], test: Path, root: Path) -> None:
    """Write the figures of one experiment for the first seed of each measured variant.

    Args:
        experiment: the experiment.
        variants: its cells by variant and seed.
        test: the file of its test examples.
        root: the folder of the figures.
    """
    first = {variant: cells[0] for variant, cells in variants.items() if cells[0].measures}
    if not first:
        return
    figures = {"curves": curves(experiment.title, {variant: cell.measures for variant, cell in first.items()})}
    if experiment.kind == "images":
        figures["overlays"] = overlays({variant: cell.run for variant, cell in first.items()}, test)
    save_all(experiment.name, figures, root)


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
            scores = token_scores(model, {"pixel_values": pixels}, method, target).detach()
            grids = scores[:, -patches.numel() :].unflatten(1, patches)
            figure_row = next(rows)
            figure_row.suptitle(f"{variant}: {method}; predicted class, and the true one where it differs", fontsize=9)
            # scores of different images differ by orders of magnitude: on one scale most would look blank
            grids = grids / grids.abs().amax((1, 2), keepdim=True).clamp_min(torch.finfo(grids.dtype).tiny)
            unit = "share of the\nimage's largest"
            image_heatmap(pixels, grids, titles=titles, unit=unit, figure=figure_row)
    return figure
