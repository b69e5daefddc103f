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
that is there is not measured again. Figures are beside them.
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
from hf_bidir.finetune.data.image_data import ImageCollator, read_digits
from research.explanations.tasks import sample
from research.rank_collapse import STACKS, WITHOUT_NORM
from research.rank_collapse.report import draw, mean_and_interval, measure_rank_collapse, models, order
from research.runs import ROOT, command_line, grid, run_grid

FILE = Path(__file__).with_name("results") / "rank_collapse.csv"
KEY = ("input", "model", "stack", "seed")
RANDOM, DIGITS, SST2 = "random tokens", "digits", "SST-2"
MASSES = (0.0, 0.25, 0.5, 0.75, 1.0)
SEEDS, LENGTH, SEQUENCES, BATCH, PATHS_PER_LENGTH = 5, 64, 2, {SST2: 8, DIGITS: 64}, 20
ROUNDING = 1e-14  # residuals below are errors of float64


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
    draw(where(runs, input=RANDOM), FILE.with_suffix(".png"))
    shown = [SST2, f"IMDB, {max(options.lengths)} tokens"]
    draw(runs[runs["input"].isin(shown)], FILE.with_name("minilm.png"))


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
        stacks = STACKS | WITHOUT_NORM
        files = [options.data_dir / ("sst2" if input == SST2 else "imdb") / "test.parquet"]
        texts = [row["text"] for row in sample(files[0], SEEDS * BATCH[SST2])][seed::SEEDS]
        cut = {"padding": True, "truncation": True, "max_length": length}
        inputs = dict(tokenizer(texts, **cut, return_tensors="pt"))
    return measure_rank_collapse(network, inputs, PATHS_PER_LENGTH, stacks), files


def middle(runs: pd.DataFrame, layer: int) -> float:
    """The geometric mean of the residual after a layer."""
    return mean_and_interval(runs[f"residual_{layer}"])[0]


def residual(runs: pd.DataFrame, layer: int) -> str:
    """The geometric mean of the residual after a layer, with its interval."""
    mean, low, high = (
        f"{value:.2f}" if value >= 0.01 else f"{value:.0e}" for value in mean_and_interval(runs[f"residual_{layer}"])
    )
    return f"{mean} [{low}, {high}]" if middle(runs, layer) > ROUNDING else "rounding"


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


if __name__ == "__main__":
    main()
