"""Do small causal language models learn as well with TanhMax, and what are their activations like?

Trains models of the shape of Llama on IMDB reviews with training/causal_lm.py, equal except for the attention: each
with three learning rates, more if the highest is the best, and the best rate with more seeds. Measures on held-out
reviews the loss, also with 8, 6 and 4 bits for weights and activations; the largest hidden activation and the kurtosis
(large ones need many bits: Bondarenko et al. 2023); and the share of attention on the first token.

    python -m research.language_models.run --data-dir DIR            # DIR/imdb/train.parquet and test.parquet
    python -m research.language_models.run --data-dir DIR --sizes small --arms softmax TanhMax

A run takes 5 to 20 minutes on two cores. Finished runs are rows of results/language_model.csv and are not repeated; an
interrupted run continues. Then `make tables` makes the tables, and report.py the figure.
"""

import argparse
import copy
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from pandas import DataFrame
from scipy import stats
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import hf_bidir
from benchmarks.runs import read_runs, where
from hf_bidir.common.files import read_json
from hf_bidir.explain.forward import forward_pass
from hf_bidir.finetune.arguments import BlockArguments
from hf_bidir.finetune.data.splits import sampled
from hf_bidir.finetune.data.text_data import cut_into_blocks, read_documents
from hf_bidir.modeling.activations import softmax
from research.runs import command_line, run_grid, train

SIZES = {
    "small": {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 256},
    "base": {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 512},
}
ARMS = {
    "softmax": {"attn_activation": "softmax"},
    "TanhMax": {"attn_negative_mass": 1.0},
    "λ = 0.1": {"attn_negative_mass": 0.1},
    "off-by-one softmax": {"attn_activation": "off_by_one"},
    "softmax / 10": {"attn_activation": "tenth"},
    "softmax − mean": {"attn_activation": "centred"},
}
MAIN = tuple(ARMS)[:4]  # the others are controls that explain the difference, small size only
RATES = (2e-3, 1e-3, 4e-3)
BATCH, BLOCK, VOCABULARY = 12, 256, 4096
HELD_OUT, CURVE, LOOKED_AT = 400, 96, 48  # blocks: for the final loss, during training, for activations
BITS = (8, 6, 4)
TOKENS = 8_000_000
KEY = ("size", "arm", "rate", "seed", "tokens")
CURVE_POINTS = range(10, 101, 10)  # percent of the tokens
FILE = Path(__file__).with_name("results") / "language_model.csv"


def main() -> None:
    parser = command_line(__doc__)
    data_help = "the folder with imdb/train.parquet and imdb/test.parquet"
    parser.add_argument("--data-dir", type=Path, required=True, help=data_help)
    parser.add_argument("--sizes", nargs="+", default=["base"], choices=SIZES)
    parser.add_argument("--arms", nargs="+", default=MAIN, choices=ARMS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of training, for each run")
    parser.add_argument("--runs", type=Path, default=Path("runs/language-model"), help="where unfinished runs are kept")
    options = parser.parse_args()
    register_controls()
    run_grid(FILE, pending(options), partial(trained, options))


def register_controls() -> None:
    """Activations that each have one property of TanhMax: abstention without a sign, a small start, sums close to 0."""
    hf_bidir.register_attn_activation("off_by_one", off_by_one)
    hf_bidir.register_attn_activation("tenth", lambda scores, keep=None, dim=-1: softmax(scores, keep, dim) / 10)
    hf_bidir.register_attn_activation("centred", centred)


def off_by_one(scores: Tensor, keep: Tensor | None = None, dim: int = -1) -> Tensor:
    """`e^s / (1 + Σ e^s)`: an additional key with score and value 0."""
    zeros = torch.zeros_like(scores.narrow(dim, 0, 1))
    if keep is not None:
        keep = torch.cat([keep.expand_as(scores), torch.ones_like(zeros, dtype=torch.bool)], dim)
    return softmax(torch.cat([scores, zeros], dim), keep, dim).narrow(dim, 0, scores.shape[dim])


def centred(scores: Tensor, keep: Tensor | None = None, dim: int = -1) -> Tensor:
    """Softmax minus its mean over the kept keys: sums are 0; those of TanhMax are close to 0 at the start."""
    counted = torch.ones_like(scores) if keep is None else keep.expand_as(scores).to(scores.dtype)
    return softmax(scores, keep, dim) - counted / counted.sum(dim, keepdim=True).clamp_min(1)


def pending(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The runs to do, as the values of `KEY`: first the rates, then the best rate with the other seeds."""

    def run(size: str, arm: str, rate: float, seed: int) -> dict[str, Any]:
        return dict(zip(KEY, (size, arm, rate, seed, options.tokens), strict=True))

    def finished() -> DataFrame:
        return where(read_runs(FILE), tokens=options.tokens)

    for size, rate, arm in product(options.sizes, RATES, options.arms):
        yield run(size, arm, rate, 0)
    for size, arm in product(options.sizes, options.arms):
        while best_rate(done := finished(), size, arm) == (highest := rates_of(done, size, arm)[-1]):
            yield run(size, arm, 2 * highest, 0)
    for size, seed, arm in product(options.sizes, range(1, options.seeds), options.arms):
        yield run(size, arm, best_rate(finished(), size, arm), seed)


def best_rate(runs: DataFrame, size: str, arm: str) -> float:
    """The learning rate with the lowest loss of seed 0; the smallest one of several."""
    tried = where(runs, size=size, arm=arm, seed=0).sort_values("rate")
    return tried.loc[tried["loss"].idxmin(), "rate"]


def rates_of(runs: DataFrame, size: str, arm: str) -> list[float]:
    """The learning rates with a finished run of seed 0."""
    return sorted(where(runs, size=size, arm=arm, seed=0)["rate"])


def trained(
    options: argparse.Namespace, size: str, arm: str, rate: float, seed: int, tokens: int
) -> tuple[dict[str, Any], list[Path]]:
    """Train one model, measure it, and remove its folder."""
    steps = round(tokens / (BATCH * BLOCK))
    folder = options.runs / f"{size}-{arm}-{rate:g}-{seed}-{steps}".replace(" ", "").replace("/", "over")
    files = [options.data_dir / f"imdb/{split}.parquet" for split in ("train", "test")]
    settings = SIZES[size] | ARMS[arm] | {"learning_rate": rate, "seed": seed, "max_steps": steps}
    settings |= {"block_size": BLOCK, "vocab_size": VOCABULARY, "per_device_train_batch_size": BATCH}
    settings |= {"bf16": True, "torch_compile": True, "use_cpu": not torch.cuda.is_available()}
    settings |= {"max_eval_samples": CURVE, "eval_steps": 0.1, "save_steps": 0.1}
    train("causal_lm", settings | {"train_file": [str(files[0])], "validation_file": [str(files[1])]}, folder)
    history = read_json(folder / f"checkpoint-{steps}/trainer_state.json")["log_history"]
    losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    row = {f"curve_{percent}": loss for percent, loss in zip(CURVE_POINTS, losses, strict=True)}
    row |= measured(folder, str(files[1]))
    shutil.rmtree(folder)
    return row, files


@torch.no_grad()
def measured(folder: Path, file: str) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    blocks = torch.tensor(held_out(AutoTokenizer.from_pretrained(folder), file)["input_ids"])
    coefficients, states = looked_into(model, blocks[:LOOKED_AT])
    sizes = torch.stack([layer.abs() for layer in coefficients])  # [layers, blocks, heads, queries, keys]
    negative = torch.stack(coefficients).clamp_max(0).abs().sum((-1, -2)) / sizes.sum((-1, -2))
    return {
        "parameters": model.num_parameters(),
        "loss": mean_loss(model, blocks),
        "largest": max(layer.abs().max().item() for layer in states),
        "kurtosis": float(
            np.mean([stats.kurtosis(layer.flatten().double().numpy(), fisher=False) for layer in states])
        ),
        "first_share": (sizes[..., 1:, 0] / sizes[..., 1:, :].sum(-1).clamp_min(1e-12)).mean().item(),
        "negative_share": negative.mean().item(),
        **{f"loss_{bits}_bits": mean_loss(quantised(model, bits), blocks) for bits in BITS},
    }


def held_out(tokenizer: Any, file: str) -> Dataset:
    """Blocks of the file; the training script evaluates on the first ones."""
    data = BlockArguments(train_file=[file], validation_file=[file], block_size=BLOCK, max_eval_samples=HELD_OUT)
    return sampled(cut_into_blocks(read_documents(data), tokenizer, data.block_size), data).validation


def looked_into(model: PreTrainedModel, blocks: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The coefficients and the output of every layer over some blocks."""
    coefficients, states = [], []
    hooks = [
        layer.register_forward_hook(lambda *call: states.append(call[-1][0] if type(call[-1]) is tuple else call[-1]))
        for layer in model.model.layers
    ]
    for batch in blocks.split(BATCH):
        coefficients.append(forward_pass(model, {"input_ids": batch}).coefficients)
    for hook in hooks:
        hook.remove()
    layers = len(hooks)
    return (
        [torch.cat(layer) for layer in zip(*coefficients, strict=True)],
        [torch.cat(states[index::layers]) for index in range(layers)],
    )


def mean_loss(model: PreTrainedModel, blocks: Tensor) -> float:
    losses = [model(input_ids=batch, labels=batch, use_cache=False).loss.item() for batch in blocks.split(8)]
    return float(np.mean(losses))  # batches have the same size


def quantised(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """A copy with weights and inputs of linear layers rounded to `bits` bits, with one symmetric scale per tensor."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = rounded(layer.weight.data, bits)
            layer.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0], bits), *inputs[1:]))
    return model


def rounded(values: Tensor, bits: int) -> Tensor:
    step = values.abs().amax() / (2 ** (bits - 1) - 1)
    return (values / step).round() * step


if __name__ == "__main__":
    main()
