"""Pictures of models of many layers: curves of deletion and insertion, and what explanations mark on images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from hf_bidir.explain import image_heatmap, load_checkpoint, token_scores
from hf_bidir.explain.running import patch_grid
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.paper.cells import Cell
from hf_bidir.paper.deep_measures import RANKINGS, SHARES
from hf_bidir.paper.experiments import Experiment
from hf_bidir.paper.figures import save_all

IMAGES = 6
OVERLAYS = ("contributions", "rollout")


def draw_deep(experiment: Experiment, variants: Mapping[str, Sequence[Cell]], test: Path, root: Path) -> None:
    """Write the pictures of one experiment, of the first seed of every variant that is measured.

    Args:
        experiment, variants: and its cells.
        test: the file of its test examples.
        root: where the pictures go.
    """
    first = {variant: cells[0] for variant, cells in variants.items() if cells[0].measures}
    if not first:
        return
    figures = {"curves": curves(experiment.title, {variant: cell.measures for variant, cell in first.items()})}
    if experiment.kind == "images":
        figures["overlays"] = overlays({variant: cell.run for variant, cell in first.items()}, test)
    save_all(experiment.name, figures, root)


def curves(title: str, measured: Mapping[str, dict]) -> Figure:
    """Mean probability of the answer over the share of tokens that is gone, or there: a line per ranking."""
    figure = Figure(figsize=(4 * 2, 3.2 * len(measured)), layout="constrained")
    panels = figure.subplots(len(measured), 2, sharex=True, sharey=True, squeeze=False)
    for row, (variant, found) in zip(panels, measured.items(), strict=True):
        for panel, how in zip(row, ("deletion", "insertion"), strict=True):
            for name in RANKINGS:
                style = {"color": "0.6", "linestyle": ":"} if name == "random" else {}
                panel.plot(SHARES, found["curves"][f"{how} {name}"], marker=".", label=name, **style)
            panel.set(title=f"{title}, {variant}: {how}", xlabel=f"share of {how}", ylim=(0, 1))
        row[0].set_ylabel("probability of the answer")
    panels[0, 0].legend(fontsize=7)
    return figure


def overlays(runs: Mapping[str, Path], test: Path) -> Figure:
    """The first test images under what every explanation marks in every model: a row per model and explanation."""
    examples = list(read_table(str(test)).select(range(IMAGES)))
    figure = Figure(figsize=(1.6 * IMAGES + 1.2, 2.2 * len(runs) * len(OVERLAYS)), layout="constrained")
    rows = iter(figure.subfigures(len(runs) * len(OVERLAYS), 1, squeeze=False)[:, 0])
    for variant, run in runs.items():
        model, processor = load_checkpoint(run)
        pixels = ImageCollator(processor)(examples)["pixel_values"]
        patches = torch.Size(patch_grid(model, pixels))
        target = model(pixel_values=pixels).logits.argmax(-1)
        titles = [model.config.id2label[index] for index in target.tolist()]
        for method in OVERLAYS:
            scores = token_scores(model, {"pixel_values": pixels}, method, target).detach()
            grids = scores[:, -patches.numel() :].unflatten(1, patches)
            figure_row = next(rows)
            figure_row.suptitle(f"{variant}: {method}, predicted class above each image", fontsize=9)
            image_heatmap(pixels, grids, titles=titles, figure=figure_row)
    return figure
