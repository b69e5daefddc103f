"""Residuals and stable ranks by stack and layer: their rows, a text table, and a figure."""

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
from hf_bidir.checkpoints.examples import example_inputs
from hf_bidir.checkpoints.kinds import longest_text
from hf_bidir.common.files import save_figure
from hf_bidir.explain.forward import reads_images
from hf_bidir.explain.inputs.checkpoint import load_checkpoint
from research.rank_collapse.measures import (
    STACKS,
    WITHOUT_NORM,
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
PATHS = "paths"  # of as many heads as the column says
FLOOR = 1e-16  # precision of float64; smaller values are drawn here
Row = dict[str, Any]


def measure_rank_collapse(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], paths: int = 100, stacks: Mapping[str, Stack] = STACKS
) -> list[Row]:
    """A row for each stack with its mean residual and stable rank by layer, and one with the median residual of paths.

    The bidir model is converted to float64 in place. Other arguments as in `layer_states`.
    """
    model = model.double()
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    rows = []
    for name, stack in stacks.items():
        states, keep = layer_states(model, inputs, stack)
        residuals, ranks = relative_residual(states, keep).mean(1), stable_rank(states, keep).nanmean(1)
        rows.append({"stack": name} | _by_layer("residual", residuals) | _by_layer("rank", ranks))
    middle = path_residuals(model, inputs, paths=paths).median(1).values
    return [*rows, {"stack": PATHS} | _by_layer("residual", middle)]


def _by_layer(name: str, values: Tensor) -> dict[str, float]:
    return {f"{name}_{layer}": float(f"{value:.4g}") for layer, value in enumerate(values.tolist())}


def measure_checkpoint(source: str | Path, texts: Sequence[str] | None = None, paths: int = 100) -> list[Row]:
    """Measure any checkpoint, signed or softmax, on texts; without texts on random tokens or images.

    Raises:
        FileNotFoundError, ValueError: as in `load_checkpoint` and `layer_states`; or texts for an image model.
    """
    model, processor = load_checkpoint(source)
    model = getattr(model, "transformer", model)  # without the pooling of a sentence encoder
    if texts is None:
        return measure_rank_collapse(model, example_inputs(model), paths)
    if reads_images(model):
        raise ValueError(
            f"{type(model).__name__} takes images, not texts; leave the texts out to measure random images."
        )
    limit = min(longest_text(model) or 512, 512)
    inputs = processor(list(texts), padding=True, truncation=True, max_length=limit, return_tensors="pt")
    return measure_rank_collapse(model, dict(inputs), paths)


def text_table(rows: Sequence[Row]) -> str:
    """One line per layer, one column per stack with the residual and its stable rank in brackets, and a legend."""
    columns: dict[str, Any] = {"layer": range(sum(name.startswith("residual_") for name in rows[0]))}
    for row in rows:
        ranks = [f" ({row[f'rank_{layer}']:.1f})" if "rank_0" in row else "" for layer in columns["layer"]]
        columns[row["stack"]] = [f"{row[f'residual_{layer}']:.1e}{rank}" for layer, rank in enumerate(ranks)]
    return f"{DataFrame(columns).to_string(index=False)}\n{LEGEND}"


def mean_and_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean, and the 95 % t interval of its logarithm over seeds."""
    logs = np.log10(np.maximum(values, FLOOR))
    return tuple(10 ** np.array([logs.mean(), *(interval(logs) if len(logs) > 1 else (np.nan, np.nan))]))


def models(runs: DataFrame) -> list[str]:
    return sorted(runs["model"].unique(), key="TanhMax".__eq__)  # the last one; softmax and λ stay in order


def order(runs: DataFrame) -> list[str]:
    return [stack for stack in [*STACKS, *WITHOUT_NORM, PATHS] if stack in set(runs["stack"])]


def draw(runs: DataFrame, file: Path) -> None:
    """A row of panels per input, a column per stack, a line per model with its interval over seeds."""
    inputs, stacks = runs["input"].unique(), order(runs)
    layers = range(runs.filter(like="residual_").notna().any().sum())
    figure = Figure(figsize=(2.4 * len(stacks) + 1, 2.5 * len(inputs) + 1), layout="constrained")
    panels = figure.subplots(len(inputs), len(stacks), sharex=True, sharey=True, squeeze=False)
    for (row, kind), (column, stack), model in product(enumerate(inputs), enumerate(stacks), models(runs)):
        panel, found = panels[row, column], where(runs, input=kind, stack=stack, model=model)
        means, low, high = zip(*(mean_and_interval(found[f"residual_{layer}"]) for layer in layers), strict=True)
        (line,) = panel.plot(layers, means, marker=".", label=model)
        panel.fill_between(layers, low, high, alpha=0.25, color=line.get_color(), linewidth=0)
        panel.set(yscale="log", xticks=layers[:: 1 if len(layers) < 10 else 3])
        panel.set_title(stack.replace(", no", ",\nno") if row == 0 else "", fontsize=10)
        panel.set_xlabel("heads on the path" if stack == PATHS else "layer")
        panel.set_ylabel(f"{kind}\nrelative residual" if column == 0 else "")
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    save_figure(figure, file)
