"""`python -m research.rank_collapse`: the residuals of a checkpoint as a table and a figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import example_inputs, longest_text
from hf_bidir.common.files import save_figure
from hf_bidir.explain.inputs.checkpoint import load_checkpoint
from hf_bidir.explain.inputs.sentences import transformer_of
from hf_bidir.explain.record import reads_images
from research.rank_collapse.measures import (
    STACKS,
    Stack,
    layer_states,
    path_residuals,
    relative_residual,
    stable_rank,
)

LEGEND = (
    "relative residual before the first layer (row 0) and after each layer, 0 where all tokens are equal; in brackets "
    "its stable rank, the\neffective number of directions; paths: median residual of random paths, by the number of "
    "heads in the first column"
)
FLOOR = 1e-16  # precision of float64; smaller values are drawn here


@dataclass(frozen=True)
class RankCollapse:
    """Mean residual and stable rank of one model by stack and layer, and residuals of paths by length."""

    stacks: dict[str, Tensor]  # [layers + 1] each
    ranks: dict[str, Tensor]  # [layers + 1] each
    paths: Tensor  # [layers + 1, paths]

    def table(self) -> str:
        """One line per layer, one column per stack with the residual and its stable rank in brackets, and a legend.

        The last column is the median residual of paths through that many heads.
        """
        columns = [
            [f"{residual:.1e} ({rank:.1f})" for residual, rank in zip(residuals, self.ranks[name], strict=True)]
            for name, residuals in self.stacks.items()
        ]
        columns.append([f"{value:.1e}" for value in self.paths.median(1).values])
        names = ["layer", *self.stacks, "paths"]
        rows = [[str(layer), *cells] for layer, cells in enumerate(zip(*columns, strict=True))]
        lines = [
            "  ".join(f"{cell:>21}" if i else f"{cell:>5}" for i, cell in enumerate(row)) for row in [names, *rows]
        ]
        return "\n".join([*lines, LEGEND])


def measure_rank_collapse(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], paths: int = 100, stacks: Mapping[str, Stack] = STACKS
) -> RankCollapse:
    """Measure a bidir model, which is converted to float64 in place. Other arguments as in `layer_states`."""
    model = model.double()
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    residuals, ranks = {}, {}
    for name, stack in stacks.items():
        states, keep = layer_states(model, inputs, stack)
        residuals[name] = relative_residual(states, keep).mean(1)
        ranks[name] = stable_rank(states, keep).nanmean(1)
    return RankCollapse(residuals, ranks, path_residuals(model, inputs, paths=paths))


def measure_checkpoint(source: str | Path, texts: Sequence[str] | None = None, paths: int = 100) -> RankCollapse:
    """Measure any checkpoint, signed or softmax, on texts; without texts on random tokens or images.

    Raises:
        FileNotFoundError, ValueError: as in `load_checkpoint` and `layer_states`; or texts for an image model.
    """
    model, processor = load_checkpoint(source)
    model = transformer_of(model)
    if texts is None:
        return measure_rank_collapse(model, example_inputs(model), paths)
    if reads_images(model):
        raise ValueError(
            f"{type(model).__name__} takes images, not texts; leave the texts out to measure random images."
        )
    limit = min(longest_text(model) or 512, 512)
    inputs = processor(list(texts), padding=True, truncation=True, max_length=limit, return_tensors="pt")
    return measure_rank_collapse(model, dict(inputs), paths)


def draw_rank_collapse(measured: Mapping[str, RankCollapse], path: str | Path | None = None) -> Figure:
    """Draw one panel per stack and one for paths, with a line per model; save the figure, if a path is given."""
    figure = Figure(figsize=(15, 3.4), layout="constrained")
    panels = figure.subplots(1, len(STACKS) + 1, sharey=True)
    for name, found in measured.items():
        for panel, stack in zip(panels, STACKS, strict=False):
            panel.plot(found.stacks[stack].clamp_min(FLOOR), marker=".", label=name)
        middle, ends = found.paths.median(1).values, found.paths.quantile(torch.tensor([0.1, 0.9]), 1)
        panels[-1].plot(middle.clamp_min(FLOOR), marker=".", label=name)
        panels[-1].fill_between(range(len(middle)), *ends.clamp_min(FLOOR), alpha=0.2)
    for panel, title in zip(panels, [*STACKS, "paths by heads passed"], strict=True):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set(title=title, yscale="log", xlabel="heads" if title.startswith("paths") else "layer")
    panels[0].set_ylabel("relative residual ‖res(X)‖ / ‖X‖")
    panels[0].legend(fontsize=8)
    if path is not None:
        save_figure(figure, path, dpi=110)
    return figure
