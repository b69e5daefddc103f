"""Residuals and stable ranks by stack and layer: their rows, and a figure."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.runs import where
from benchmarks.seeds import interval
from research import save_figure
from research.rank_collapse.measures import STACKS, layer_states, relative_residual, stable_rank

FLOOR = 1e-16  # precision of float64; smaller values are drawn here


def measured(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """A row for each stack with its mean residual and stable rank by layer.

    The bidir model is converted to float64 in place. Other arguments and errors as in `layer_states`.
    """
    model = model.double()
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    rows = []
    for name, stack in STACKS.items():
        states, keep = layer_states(model, inputs, stack)
        columns = {
            "residual": relative_residual(states, keep).mean(1),
            "rank": stable_rank(states, keep).nanmean(1),
        }
        row = {"stack": name}
        for column, values in columns.items():
            row |= {f"{column}_{layer}": float(f"{value:.4g}") for layer, value in enumerate(values.tolist())}
        rows.append(row)
    return rows


def mean_and_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean, and the 95 % t interval of its logarithm over seeds."""
    logs = np.log10(np.maximum(values, FLOOR))
    return tuple(10 ** np.array([logs.mean(), *(interval(logs) if len(logs) > 1 else (np.nan, np.nan))]))


def models(runs: DataFrame) -> list[str]:
    return sorted(runs["model"].unique(), key="TanhMax".__eq__)  # the last one; softmax and λ stay in order


def draw(runs: DataFrame, file: Path) -> None:
    """A panel per stack, a line per model with its interval over seeds."""
    layers = range(runs.filter(like="residual_").notna().any().sum())
    figure = Figure(figsize=(2.4 * len(STACKS) + 1, 3.5), layout="constrained")
    panels = dict(zip(STACKS, figure.subplots(1, len(STACKS), sharey=True), strict=True))
    for (stack, panel), model in product(panels.items(), models(runs)):
        seeds = where(runs, stack=stack, model=model)
        means, low, high = zip(*(mean_and_interval(seeds[f"residual_{layer}"]) for layer in layers), strict=True)
        (line,) = panel.plot(layers, means, marker=".", label=model)
        panel.fill_between(layers, low, high, alpha=0.25, color=line.get_color(), linewidth=0)
        panel.set(yscale="log", xticks=layers[:: 1 if len(layers) < 10 else 3], xlabel="layer")
        panel.set_title(stack, fontsize=10)
    figure.axes[0].set_ylabel("relative residual")
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    save_figure(figure, file)
