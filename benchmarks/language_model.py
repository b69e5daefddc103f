"""Do small causal language models learn as well with TanhMax, and what are their activations like?

Trains models of the shape of Llama on IMDB reviews with training/causal_lm.py, equal except for the attention: each
with three learning rates, more if the highest is the best, and the best rate with more seeds. Measures on held-out
reviews the loss, also with 8, 6 and 4 bits for weights and activations; the largest hidden activation and the kurtosis
(large ones need many bits: Bondarenko et al. 2023); and the share of attention on the first token.

    python benchmarks/language_model.py --data-dir DIR            # DIR/imdb/train.parquet and test.parquet
    python benchmarks/language_model.py --data-dir DIR --sizes small --arms softmax TanhMax
    python benchmarks/language_model.py --table                   # only the table, from finished runs

A run takes 5 to 20 minutes on two cores. Finished runs are lines of results/language_model.jsonl and are not
repeated; an interrupted run continues.
"""

import argparse
import copy
import json
import shutil
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from matplotlib.figure import Figure
from measure import write_table
from scipy import stats
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import hf_bidir
from hf_bidir.explain.running import record_coefficients
from hf_bidir.finetune.data.arguments import BlockArguments
from hf_bidir.finetune.data.blocks import cut_into_blocks, read_documents
from hf_bidir.finetune.folder import read_record
from hf_bidir.finetune.tasks.causal_lm import causal_lm
from hf_bidir.modeling.activations import softmax

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
HELD_OUT, CURVE, LOOKED_AT = (
    400,
    96,
    48,
)  # blocks for the final loss, for losses during training, for activations
BITS = (8, 6, 4)
BIT_LOSSES = [f"loss_{bits}_bits" for bits in BITS]
RESULTS = Path(__file__).parent / "results" / "language_model.jsonl"
Run = tuple[str, str, float, int]  # size, arm, learning rate, seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="the folder with imdb/train.parquet and imdb/test.parquet")
    parser.add_argument("--sizes", nargs="+", default=["base"], choices=SIZES)
    parser.add_argument("--arms", nargs="+", default=MAIN, choices=ARMS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=8_000_000, help="of training, for each run")
    parser.add_argument("--runs", type=Path, default=Path("runs/language-model"), help="where unfinished runs are kept")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    register_controls()
    if not options.table:
        if options.data_dir is None:
            parser.error("expected --data-dir, the folder with imdb/train.parquet and imdb/test.parquet")
        for run in pending(options):
            done = trained(run, options)
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done, ensure_ascii=False) + "\n")
            print(f"{run}: loss {done['loss']:.4f}", flush=True)
    write_tables(options)


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
    kept = torch.ones_like(scores) if keep is None else keep.expand_as(scores).to(scores.dtype)
    return softmax(scores, keep, dim) - kept / kept.sum(dim, keepdim=True).clamp_min(1)


def finished(options: argparse.Namespace) -> dict[Run, dict[str, Any]]:
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.is_file() else []
    rows = [row for row in map(json.loads, lines) if row["tokens"] == options.tokens]
    return {(row["size"], row["arm"], row["rate"], row["seed"]): row for row in rows}


def pending(options: argparse.Namespace) -> Iterator[Run]:
    """The missing runs: first the rates, then the best rate with the other seeds."""
    for size, rate, arm in product(options.sizes, RATES, options.arms):
        if (run := (size, arm, rate, 0)) not in finished(options):
            yield run
    for size, arm in product(options.sizes, options.arms):
        while best_rate(done := finished(options), size, arm) == (highest := max(rates_of(done, size, arm))):
            yield size, arm, 2 * highest, 0
    for size, seed, arm in product(options.sizes, range(1, options.seeds), options.arms):
        if (run := (size, arm, best_rate(finished(options), size, arm), seed)) not in finished(options):
            yield run


def best_rate(done: dict[Run, dict[str, Any]], size: str, arm: str) -> float:
    return min((done[size, arm, rate, 0]["loss"], rate) for rate in rates_of(done, size, arm))[1]


def rates_of(done: dict[Run, dict[str, Any]], size: str, arm: str) -> list[float]:
    """The learning rates with a finished run of seed 0."""
    return sorted(run[2] for run in done if (*run[:2], run[3]) == (size, arm, 0))


def trained(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Train one model, measure it, and remove its folder."""
    size, arm, rate, seed = run
    steps = round(options.tokens / (BATCH * BLOCK))
    folder = options.runs / f"{size}-{arm}-{rate:g}-{seed}-{steps}".replace(" ", "").replace("/", "over")
    chosen = SIZES[size] | ARMS[arm] | {"learning_rate": rate, "seed": seed, "max_steps": steps}
    chosen |= {"block_size": BLOCK, "vocab_size": VOCABULARY, "per_device_train_batch_size": BATCH}
    chosen |= {"bf16": True, "torch_compile": True, "use_cpu": not torch.cuda.is_available()}
    chosen |= {"max_eval_samples": CURVE, "eval_steps": 0.1, "save_steps": 0.1, "output_dir": str(folder)}
    chosen |= {"train_file": [str(options.data_dir / "imdb/train.parquet")]}
    chosen |= {"validation_file": [str(options.data_dir / "imdb/test.parquet")]}
    if read_record(folder).get("status") != "finished":
        causal_lm(chosen)
    state = (folder / f"checkpoint-{steps}/trainer_state.json").read_text(encoding="utf-8")
    history = json.loads(state)["log_history"]
    curve = {str(entry["step"]): entry["eval_loss"] for entry in history if "eval_loss" in entry}
    row = {"size": size, "arm": arm, "rate": rate, "seed": seed, "tokens": options.tokens, "curve": curve}
    row |= measured(folder, str(options.data_dir / "imdb/test.parquet"))
    shutil.rmtree(folder)
    return row


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


@cache
def _documents(file: str) -> Any:
    return read_documents(BlockArguments(train_file=[file], validation_file=[file]))


def held_out(tokenizer: Any, file: str) -> Dataset:
    """Blocks of the file; the training script evaluates on the first ones."""
    data = BlockArguments(train_file=[file], validation_file=[file], block_size=BLOCK, max_eval_samples=HELD_OUT)
    return cut_into_blocks(_documents(file), tokenizer, data).validation


def looked_into(model: PreTrainedModel, blocks: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The coefficients and the output of every layer over some blocks."""
    coefficients, states = [], []
    hooks = [
        layer.register_forward_hook(lambda layer, args, output: states.append(_first(output)))
        for layer in model.model.layers
    ]
    for batch in blocks.split(BATCH):
        coefficients.append(record_coefficients(model, {"input_ids": batch})[1])
    for hook in hooks:
        hook.remove()
    layers = len(hooks)
    return (
        [torch.cat(layer) for layer in zip(*coefficients, strict=True)],
        [torch.cat(states[index::layers]) for index in range(layers)],
    )


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def mean_loss(model: PreTrainedModel, blocks: Tensor) -> float:
    losses = [model(input_ids=batch, labels=batch, use_cache=False).loss.item() for batch in blocks.split(8)]
    return float(np.mean(losses))  # batches have the same size


def quantised(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """A copy with weights and inputs of linear layers rounded to `bits` bits, with one symmetric scale per tensor."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = rounded(layer.weight.data, bits)
            layer.register_forward_pre_hook(partial(_round_input, bits))
    return model


def _round_input(bits: int, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (rounded(inputs[0], bits), *inputs[1:])


def rounded(values: Tensor, bits: int) -> Tensor:
    step = values.abs().amax() / (2 ** (bits - 1) - 1)
    return (values / step).round() * step


def write_tables(options: argparse.Namespace) -> None:
    """Save tables of the best rates and of every rate, and a figure of the losses during training, of finished runs."""
    done = finished(options)
    arms = [(size, arm) for size, arm in product(SIZES, ARMS) if rates_of(done, size, arm)]
    notes = (
        f"Models of the shape of Llama on {options.tokens / 1e6:g} million tokens of IMDB reviews (byte-level BPE of "
        f"{VOCABULARY:,} pieces; {BATCH} blocks of {BLOCK} tokens a step; AdamW, cosine, bf16 autocast); losses in "
        f"nats per token on {HELD_OUT} blocks of the test reviews, at 10 % of the tokens and in the figure on {CURVE} "
        "of them. Negative: the share of the coefficients' absolute sum. Bits: loss with weights and inputs of all "
        "linear layers rounded, one scale per tensor. "
    )
    chosen = (
        f"The best of the learning rates {', '.join(map(str, sorted(RATES)))}, doubled while the highest is the best, "
        "by the loss of seed 0 on the same blocks; means over seeds. Difference: to softmax with the same seeds, with "
        "a 95 % t-interval. The columns of rates and seeds count finished runs."
    )
    header = ["size", "attention", "rates", "best", "seeds", "loss", "difference", *COLUMNS]
    rows = [[size, arm, *row_of(done, size, arm)] for size, arm in arms]
    write_table(RESULTS.with_suffix(".md"), "Small language models", notes + chosen, header, rows, "cpu")
    every = [(size, arm, rate, 0) for size, arm in arms for rate in rates_of(done, size, arm)]
    rows = [[run[0], run[1], f"{run[2]:g}", f"{done[run]['loss']:.3f}", *numbers([done[run]])] for run in every]
    header, file = ["size", "attention", "rate", "loss", *COLUMNS], RESULTS.with_name("language_model_rates.md")
    write_table(file, "Small language models at every learning rate", notes + "Seed 0.", header, rows, "cpu")
    draw(done, arms, RESULTS.with_suffix(".png"))


COLUMNS = ["loss at 10 %", "kurtosis", "largest activation", "on the first token", "negative"]
COLUMNS += [f"{bits} bits" for bits in BITS]


def numbers(runs: list[dict[str, Any]]) -> list[str]:
    """Means over runs, in the order of COLUMNS."""
    early = np.mean([next(iter(row["curve"].values())) for row in runs])
    names = {"kurtosis": 2, "largest": 1, "first_share": 3, "negative_share": 3, **dict.fromkeys(BIT_LOSSES, 3)}
    return [f"{early:.3f}", *(f"{np.mean([row[name] for row in runs]):.{digits}f}" for name, digits in names.items())]


def row_of(done: dict[Run, dict[str, Any]], size: str, arm: str) -> list[str]:
    best = best_rate(done, size, arm)
    runs = seeds_of(done, size, arm)
    loss = np.mean([row["loss"] for row in runs.values()])
    start = [str(len(rates_of(done, size, arm))), f"{best:g}", str(len(runs)), f"{loss:.3f}"]
    return [*start, difference(done, size, runs), *numbers(list(runs.values()))]


def seeds_of(done: dict[Run, dict[str, Any]], size: str, arm: str) -> dict[int, dict[str, Any]]:
    """The runs with the best rate, by seed."""
    best = best_rate(done, size, arm)
    return {run[3]: row for run, row in done.items() if run[:3] == (size, arm, best)}


def difference(done: dict[Run, dict[str, Any]], size: str, runs: dict[int, dict[str, Any]]) -> str:
    """The mean difference of losses to softmax at its best rate, over the seeds that both have, with its interval."""
    if not rates_of(done, size, "softmax"):
        return "–"
    softmax_runs = seeds_of(done, size, "softmax")
    pairs = [row["loss"] - softmax_runs[seed]["loss"] for seed, row in runs.items() if seed in softmax_runs]
    if len(pairs) < 2 or not any(pairs):
        return f"{np.mean(pairs):+.3f}" if pairs and any(pairs) else "–"
    low, high = stats.t.interval(0.95, len(pairs) - 1, loc=np.mean(pairs), scale=stats.sem(pairs))
    return f"{np.mean(pairs):+.3f} [{low:+.3f}, {high:+.3f}]"


def draw(done: dict[Run, dict[str, Any]], arms: list[tuple[str, str]], file: Path) -> None:
    """The difference of the loss to softmax during training, each with its best rate, over the seeds of both."""
    sizes = [size for size in SIZES if (size, "softmax") in arms]
    if not sizes:
        return
    figure = Figure(figsize=(5.5 * len(sizes), 3.6), layout="constrained")
    for panel, size in zip(figure.subplots(1, len(sizes), squeeze=False).flat, sizes, strict=True):
        base = seeds_of(done, size, "softmax")
        panel.axhline(0, color="black", linewidth=1)
        for arm in [arm for of, arm in arms if of == size and arm != "softmax"]:
            runs = seeds_of(done, size, arm)
            both = runs.keys() & base.keys()
            curve, zero = (mean_curve([of[seed] for seed in both]) for of in (runs, base))
            label = f"{arm} (rate {best_rate(done, size, arm):g}, {len(both)} seed{'s' * (len(both) > 1)})"
            panel.plot(
                [int(step) * BATCH * BLOCK / 1e6 for step in zero],
                [curve[step] - zero[step] for step in zero],
                label=label,
            )
        parameters = done[size, "softmax", best_rate(done, size, "softmax"), 0]["parameters"]
        rate = best_rate(done, size, "softmax")
        panel.set(title=f"{parameters / 1e6:.1f} million parameters; softmax with rate {rate:g} is 0")
        panel.set(xlabel="million tokens", ylabel="loss − loss of softmax (nats)")
        panel.legend(fontsize=8)
    figure.savefig(file, dpi=100)


def mean_curve(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The losses during training by step, mean over runs."""
    curves = [row["curve"] for row in runs]
    return {step: float(np.mean([curve[step] for curve in curves])) for step in curves[0]}


if __name__ == "__main__":
    main()
