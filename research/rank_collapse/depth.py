"""Do a model's tokens become equal with depth, with softmax and with TanhMax, and which parts prevent it?

    python training/distill.py training/recipes/minilm-healed.yaml --model_name_or_path MINILM \\
        --train_file DIR/imdb/train.parquet DIR/sst2/train.parquet \\
        --validation_file DIR/imdb/test.parquet DIR/sst2/validation.parquet
    python -m research.rank_collapse.depth --data-dir DIR --minilm MINILM

Random stacks: 12 layers with BERT-base's shape and random weights, as transformers initialises them, on random tokens;
the seed is that of weights and tokens. MiniLM: sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights, and
its copy that the first command converts to TanhMax and heals; on test sentences of SST-2 and test reviews of IMDB.
Digits: the two ViTs in model_cards/ on test images. For MiniLM and digits, a seed stands for a batch of examples. All
in double precision. Rows go to results/rank_collapse.csv, one for each input, model, stack and seed; a row
that is there is not measured again. Figures go to docs/rank-collapse.png and docs/rank-collapse-minilm.png.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from benchmarks.runs import check_runs, markdown, read_runs, where
from hf_bidir import BidirBertConfig, BidirBertModel
from hf_bidir.common.files import save_figure
from hf_bidir.common.statistics import interval
from hf_bidir.explain import load_checkpoint
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.data.image_files import read_digits
from research.explanations.tasks import sample
from research.rank_collapse import STACKS, WITHOUT_NORM
from research.rank_collapse.report import RankCollapse, measure_rank_collapse
from research.runs import ROOT, command_line, grid, run_grid

FILE = Path(__file__).with_name("results") / "rank_collapse.csv"
KEY = ("input", "model", "stack", "seed")
RANDOM, DIGITS, SST2 = "random tokens", "digits", "SST-2"
PATHS = "paths"  # of as many heads as the column says
MASSES = (0.0, 0.25, 0.5, 0.75, 1.0)
SEEDS, LENGTH, SEQUENCES, BATCH, PATHS_PER_LENGTH = 5, 64, 2, {SST2: 8, DIGITS: 64}, 20
FLOOR, ROUNDING = 1e-16, 1e-14  # the precision of float64, where smaller values are drawn; residuals below are errors


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="holds sst2/ and imdb/")
    parser.add_argument("--minilm", required=True, help="the softmax MiniLM, a folder or a name on the Hub")
    parser.add_argument("--healed", type=Path, default=ROOT / "runs/minilm-healed", help="the TanhMax MiniLM")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128, 512], help="of reviews, in tokens")
    options = parser.parse_args()
    reviews = [f"IMDB, {length} tokens" for length in options.lengths]
    pair = {"model": ("softmax", "TanhMax"), "seed": range(SEEDS)}
    trials = grid(input=[RANDOM], model=[f"λ = {mass:g}" for mass in MASSES], seed=range(SEEDS))
    run_grid(FILE, trials + grid(input=[DIGITS, SST2, *reviews], **pair), partial(measured, options), KEY)
    runs = read_runs(FILE)
    draw(where(runs, input=RANDOM), ROOT / "docs/rank-collapse.png")
    shown = [SST2, f"IMDB, {max(options.lengths)} tokens"]
    draw(runs[runs["input"].isin(shown)], ROOT / "docs/rank-collapse-minilm.png")


def measured(
    options: argparse.Namespace, input: str, model: str, seed: int
) -> tuple[list[dict[str, Any]], Sequence[Path]]:
    """A row for each stack of a model on one batch of one kind of input, and the data files."""
    stacks, files = STACKS, []
    if input == RANDOM:
        torch.manual_seed(seed)
        config = BidirBertConfig(attn_negative_mass=float(model.removeprefix("λ = ")))
        network, generator = BidirBertModel(config).eval(), torch.Generator().manual_seed(seed)
        inputs = {"input_ids": torch.randint(config.vocab_size, (SEQUENCES, LENGTH), generator=generator)}
    elif input == DIGITS:
        network, processor = load_checkpoint(ROOT / f"model_cards/digits-{model.lower()}")
        images = read_digits()["test"].select(range(seed * BATCH[DIGITS], (seed + 1) * BATCH[DIGITS]))
        inputs = {"pixel_values": ImageCollator(processor)(images)["pixel_values"]}
    else:
        network, tokenizer = load_checkpoint(options.minilm if model == "softmax" else options.healed)
        length = 64 if input == SST2 else int(input.split()[1])
        stacks, files = (
            STACKS | WITHOUT_NORM,
            [options.data_dir / ("sst2" if input == SST2 else "imdb") / "test.parquet"],
        )
        texts = [row["text"] for row in sample(files[0], SEEDS * BATCH[SST2])][seed::SEEDS]
        cut = {"padding": True, "truncation": True, "max_length": length}
        inputs = dict(tokenizer(texts, **cut, return_tensors="pt"))
    return list(rows_of(measure_rank_collapse(network, inputs, PATHS_PER_LENGTH, stacks))), files


def rows_of(found: RankCollapse) -> Iterator[dict[str, Any]]:
    """The stack, and residual and stable rank by layer, four digits each."""
    for stack, residuals in (found.stacks | {PATHS: found.paths.median(1).values}).items():
        columns = {"residual": residuals} | ({"rank": found.ranks[stack]} if stack != PATHS else {})
        yield {"stack": stack} | {
            f"{name}_{layer}": float(f"{value:.4g}")
            for name, values in columns.items()
            for layer, value in enumerate(values.tolist())
        }


# tables and figures


def mean_and_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean, and the 95 % t interval of its logarithm over seeds."""
    logs = np.log10(np.maximum(values, FLOOR))
    return tuple(10 ** np.array([logs.mean(), *interval(logs)]))


def middle(runs: pd.DataFrame, layer: int) -> float:
    """The geometric mean of the residual after a layer."""
    return mean_and_interval(runs[f"residual_{layer}"])[0]


def residual(runs: pd.DataFrame, layer: int) -> str:
    """The geometric mean of the residual after a layer, with its interval."""
    mean, low, high = (
        f"{value:.2f}" if value >= 0.01 else f"{value:.0e}" for value in mean_and_interval(runs[f"residual_{layer}"])
    )
    return f"{mean} [{low}, {high}]" if middle(runs, layer) > ROUNDING else "rounding"


def models(runs: pd.DataFrame) -> list[str]:
    return sorted(runs["model"].unique(), key="TanhMax".__eq__)  # the last one; softmax and λ stay in order


def order(runs: pd.DataFrame) -> list[str]:
    return [stack for stack in [*STACKS, *WITHOUT_NORM, PATHS] if stack in set(runs["stack"])]


def table(runs: pd.DataFrame, kind: str, shown: Sequence[int], stacks: Sequence[str] = ()) -> str:
    """Relative residual with its interval, and stable rank, on one kind of input after some layers (0: before).

    By default of all stacks.
    """
    runs = where(runs, input=kind)
    check_runs(runs, ("input", "model", "stack"), SEEDS)
    rows = []
    for model, stack in product(models(runs), stacks or order(runs)):
        found, cells = where(runs, model=model, stack=stack), []
        for layer in shown:
            rank = found[f"rank_{layer}"].mean() if middle(found, layer) > ROUNDING else np.nan
            cells.append(residual(found, layer) + ("" if np.isnan(rank) else f" ({rank:.1f})"))
        rows.append([model, stack, *cells])
    return markdown(["model", "stack", *("input" if not layer else f"layer {layer}" for layer in shown)], rows)


def draw(runs: pd.DataFrame, file: Path) -> None:
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


if __name__ == "__main__":
    main()
