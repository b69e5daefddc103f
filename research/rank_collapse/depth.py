"""Do a model's tokens become equal with depth, with softmax and with TanhMax, and which parts prevent it?

    python training/distill.py training/recipes/minilm-healed.yaml --model_name_or_path MINILM --max_steps 300 \\
        --train_file DIR/imdb/train.parquet DIR/sst2/train.parquet \\
        --validation_file DIR/imdb/test.parquet DIR/sst2/validation.parquet
    python -m research.rank_collapse.depth --data-dir DIR --minilm MINILM

Random stacks: 12 layers with BERT-base's shape and random weights, as transformers initialises them, on random tokens;
the seed is that of weights and tokens. MiniLM: sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights, and
its copy that the first command converts to TanhMax and heals; on test sentences of SST-2. Digits: the two ViTs in
model_cards/ on test images. For MiniLM and digits, a seed stands for a batch of examples. All in double precision. Rows
go to results/rank_collapse.csv, one for each input, model, stack and seed; a row that is there is not measured again.
Figures are beside them.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.runs import check_runs, markdown, read_runs, where
from hf_bidir import BidirBertConfig, BidirBertModel
from hf_bidir.explain import load_checkpoint
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.data.sources import read_digits
from research.explanations.tasks import sample
from research.rank_collapse import STACKS
from research.rank_collapse.report import draw, mean_and_interval, measured, models
from research.runs import ROOT, command_line, grid, run_grid

FILE = Path(__file__).with_name("results") / "rank_collapse.csv"
KEY = ("input", "model", "stack", "seed")
RANDOM, DIGITS, SST2 = "random tokens", "digits", "SST-2"
MASSES = (0.0, 0.25, 0.5, 0.75, 1.0)
SEEDS, LENGTH, SEQUENCES, BATCH = 5, 64, 2, {SST2: 8, DIGITS: 64}
ROUNDING = 1e-14  # residuals below are errors of float64


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="holds sst2/")
    parser.add_argument("--minilm", required=True, help="the softmax MiniLM, a folder or a name on the Hub")
    parser.add_argument("--healed", type=Path, default=ROOT / "runs/minilm-healed", help="the TanhMax MiniLM")
    options = parser.parse_args()
    trials = grid(input=[RANDOM], model=[f"λ = {mass:g}" for mass in MASSES], seed=range(SEEDS))
    trials += grid(input=[DIGITS, SST2], model=("softmax", "TanhMax"), seed=range(SEEDS))
    run_grid(FILE, trials, partial(run, options), KEY)
    draw_figures()


def draw_figures() -> None:
    """The figures of the rows that are there."""
    runs = read_runs(FILE)
    draw(where(runs, input=RANDOM), FILE.with_suffix(".png"))
    draw(where(runs, input=SST2), FILE.with_name("minilm.png"))


def run(options: argparse.Namespace, input: str, model: str, seed: int) -> tuple[list[dict[str, Any]], Sequence[Path]]:
    """A row for each stack of a model on one batch of one kind of input, and the data files."""
    files = []
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
        files = [options.data_dir / "sst2/test.parquet"]
        texts = [row["text"] for row in sample(files[0], SEEDS * BATCH[SST2])][seed::SEEDS]
        cut = {"padding": True, "truncation": True, "max_length": LENGTH}
        inputs = dict(tokenizer(texts, **cut, return_tensors="pt"))
    return measured(network, inputs), files


def table(runs: pd.DataFrame, kind: str, shown: Sequence[int], stacks: Sequence[str] = tuple(STACKS)) -> str:
    """Relative residual with its interval, and stable rank, on one kind of input after some layers (0: before)."""
    runs = where(runs, input=kind)
    check_runs(runs, ("input", "model", "stack"), SEEDS)
    rows = []
    for model, stack in product(models(runs), stacks):
        seeds = where(runs, model=model, stack=stack)
        rows.append([model, stack, *(_cell(seeds, layer) for layer in shown)])
    return markdown(["model", "stack", *(f"layer {layer}" if layer else "input" for layer in shown)], rows)


def _cell(seeds: pd.DataFrame, layer: int) -> str:
    """The geometric mean of the residual after a layer with its interval, and the mean stable rank."""
    numbers = mean_and_interval(seeds[f"residual_{layer}"])
    if numbers[0] <= ROUNDING:
        return "rounding"
    mean, low, high = (f"{value:.2f}" if value >= 0.01 else f"{value:.0e}" for value in numbers)
    rank = seeds[f"rank_{layer}"].mean()
    return f"{mean} [{low}, {high}]" + ("" if np.isnan(rank) else f" ({rank:.1f})")


if __name__ == "__main__":
    main()
