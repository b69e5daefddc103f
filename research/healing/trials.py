"""Which way of healing brings a pretrained language model closest to its softmax perplexity, at equal compute?

    python -m research.healing.trials --data-dir DIR             # DIR/imdb and DIR/ag_news: train and test.parquet
    python -m research.healing.trials --data-dir DIR --only states logits --budget 80

The model is SmolLM2-135M-Instruct. Every way that trains has the same budget, in forward passes of a batch, counted by
weights and not timed: a training step with a teacher costs four; one that also runs without negative coefficients
seven; one that matches attention outputs 1.6, because attention has a fifth of the weights. Training, in bf16, and
evaluation use blocks of 128 tokens, half reviews and half news. Each run is a row of results/trials.csv; `make tables`
makes the table.

The ways are those of `WAYS`; `--help` lists them.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pandas import DataFrame, read_parquet
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedModel, get_cosine_schedule_with_warmup
from transformers.utils import ModelOutput

from benchmarks.measure import command_line, run_grid
from benchmarks.runs import listing
from hf_bidir import signed
from hf_bidir.checkpoints.layer_hooks import without_negatives
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.explain.forward import forward_pass
from hf_bidir.finetune.distillation import divergence, relative_error
from hf_bidir.modeling.signed_layers import attention_layers, signed_layers

FILE = Path(__file__).with_name("results") / "trials.csv"
BLOCK, BATCH, HELD_OUT, MARGIN = 128, 16, 32, 0.1
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
COST = {"states": 4.0, "logits": 4.0, "needed": 7.0, "attention": 1.6}  # of a step, in forward passes


@dataclass(frozen=True)
class Way:
    """A way of healing.

    Attributes:
        what: the description in the table and in `--help`.
        losses: names in `LOSSES`, one for each phase of training; phases share the budget equally, and without a loss
            the student is not trained.
        activation, mass: of the student.
    """

    what: str
    losses: tuple[str, ...] = ()
    activation: str = "tanhmax"
    mass: float = 1.0


TANHMAX, BALANCED = "TanhMax, λ = 1", "balanced, λ = {}{}"
WAYS = {
    "softmax": Way("softmax", mass=0.0),
    "swapped": Way(f"{TANHMAX}, not trained"),
    "small-mass": Way("TanhMax, λ = 1e-6, not trained", mass=1e-6),
    "states": Way(f"{TANHMAX}: hidden states and logits", ("states",)),
    "logits": Way(f"{TANHMAX}: divergence of the next token", ("logits",)),
    "attention": Way(
        f"{TANHMAX}: outputs of attention layers for the teacher's inputs, then logits", ("attention", "logits")
    ),
    **{
        f"balanced-{mass}": Way(BALANCED.format(mass, ", not trained"), (), "balanced", mass)
        for mass in (0.1, 0.2, 0.4, 1.0)
    },
    "balanced-0.4-logits": Way(BALANCED.format(0.4, ": logits"), ("logits",), "balanced", 0.4),
    "balanced-0.2-needed": Way(
        BALANCED.format(0.2, ": logits, negative coefficients needed"), ("needed",), "balanced", 0.2
    ),
}
TEXTS = {"reviews": "imdb", "news": "ag_news"}
COLUMNS = {  # of the table: heading and format
    "way": ("way", "{}"),
    "budget": ("forward passes", "{:.0f}"),
    "reviews": ("reviews", "{:.1f}"),
    "news": ("news", "{:.1f}"),
    "reviews_without": ("reviews, no negatives", "{:.3g}"),
    "news_without": ("news, no negatives", "{:.3g}"),
    "negative_share": ("negative coefficients", "{:.0%}"),
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", default=MODEL, help="a folder or a name on the Hub")
    listed = "; ".join(f"{name} ({way.what})" for name, way in WAYS.items())
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help=listed)
    parser.add_argument("--budget", type=float, default=160, help="forward passes of a batch for each run")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    options = parser.parse_args()
    teacher, tokenizer = opened(options.model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    teacher.to(device).requires_grad_(False)
    blocks = {
        split: {kind: blocks_of(tokenizer, options.data_dir / f"{folder}/{split}.parquet", count).to(device)
                for kind, folder in TEXTS.items()}
        for split, count in (("train", 4096), ("test", HELD_OUT))
    }  # fmt: skip

    def run(way: str, budget: float, learning_rate: float, seed: int) -> tuple[dict[str, Any], list[Path]]:
        torch.manual_seed(seed)
        chosen = WAYS[way]
        student = signed(copy.deepcopy(teacher), chosen.mass, attn_activation=chosen.activation)
        if chosen.losses:
            student = trained(student, teacher, chosen, budget, learning_rate, batches(blocks["train"], seed))
        files = [options.data_dir / f"{folder}/{split}.parquet" for folder in TEXTS.values() for split in blocks]
        return scores(student, blocks["test"]), files

    fixed = {"learning_rate": options.learning_rate, "seed": 0}
    trials = [{"way": way, "budget": options.budget * bool(WAYS[way].losses)} | fixed for way in options.only]
    run_grid(FILE, trials, run)


def opened(source: str) -> tuple[PreTrainedModel, Any]:
    """A softmax model in fp32 and its tokenizer."""
    return open_checkpoint(source).model(torch.float32).eval(), AutoTokenizer.from_pretrained(source)


def blocks_of(tokenizer: Any, file: Path, count: int, length: int = BLOCK) -> Tensor:
    """The first tokens of a file's shuffled texts, joined, `[count, length]`, or fewer rows if the file ends."""
    table = read_parquet(file)
    ids: list[int] = []
    for text in table["text"].sample(frac=1, random_state=0):
        ids += [tokenizer.eos_token_id, *tokenizer(text.replace("<br />", " "))["input_ids"]]
        if len(ids) >= count * length:
            break
    return torch.tensor(ids[: len(ids) // length * length][: count * length]).view(-1, length)


def batches(blocks: dict[str, Tensor], seed: int) -> Iterator[Tensor]:
    """Batches of blocks, the same number of each kind, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        rows = [x[torch.randint(len(x), (BATCH // len(blocks),), generator=generator)] for x in blocks.values()]
        yield torch.cat(rows)


def trained(
    student: PreTrainedModel, teacher: PreTrainedModel, way: Way, budget: float, rate: float, data: Iterator[Tensor]
) -> PreTrainedModel:
    """The student after training with a budget of forward passes; changes it in place."""
    student.requires_grad_(True).get_input_embeddings().requires_grad_(False)  # and the head, which is tied to them
    weights = [weight for weight in student.parameters() if weight.requires_grad]
    for loss in way.losses:
        steps = round(budget / len(way.losses) / COST[loss])
        optimizer = torch.optim.AdamW(weights, rate, weight_decay=0.0)
        scheduler = get_cosine_schedule_with_warmup(optimizer, max(1, steps // 10), steps)
        for _ in tqdm(range(steps), desc=loss, leave=False):
            optimizer.zero_grad()
            with torch.autocast(student.device.type, torch.bfloat16):
                error = LOSSES[loss](student, teacher, next(data))
            error.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            scheduler.step()
    return student


def states_loss(student: PreTrainedModel, teacher: PreTrainedModel, ids: Tensor) -> Tensor:
    """The relative error of hidden states and logits."""
    with torch.no_grad():
        expected = teacher(ids, output_hidden_states=True)
    return relative_error(student(ids, output_hidden_states=True), expected)


def logits_loss(student: PreTrainedModel, teacher: PreTrainedModel, ids: Tensor) -> Tensor:
    """The divergence of the next token."""
    return divergence(student(ids), predicted(teacher, ids))


def needed_loss(student: PreTrainedModel, teacher: PreTrainedModel, ids: Tensor) -> Tensor:
    """`logits_loss`, and a penalty unless the divergence without negative coefficients is `MARGIN` nats larger."""
    expected = predicted(teacher, ids)
    loss = divergence(student(ids), expected)
    with without_negatives(student):
        without = divergence(student(ids), expected)
    return loss + (loss.detach() + MARGIN - without).clamp_min(0)


@torch.no_grad()
def predicted(teacher: PreTrainedModel, ids: Tensor) -> ModelOutput:
    return teacher(ids)


def attention_loss(student: PreTrainedModel, teacher: PreTrainedModel, ids: Tensor) -> Tensor:
    """The relative error of attention outputs for the inputs of the teacher's layers, mean over tokens and layers."""
    errors = []
    for layer, (kwargs, expected) in zip(signed_layers(student), attention_calls(teacher, ids), strict=True):
        expected = expected.float()
        error = (layer(**kwargs)[0] - expected).square().sum(-1) / expected.square().sum(-1).clamp_min(1e-6)
        errors.append(error.mean())
    return torch.stack(errors).mean()


LOSSES = {"states": states_loss, "logits": logits_loss, "needed": needed_loss, "attention": attention_loss}


@torch.no_grad()
def attention_calls(teacher: PreTrainedModel, ids: Tensor) -> list[tuple[dict[str, Any], Tensor]]:
    """Keyword arguments and output of every attention layer in a forward pass."""
    calls = []

    def record(layer: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        calls.append((kwargs, output[0]))

    with hooked(attention_layers(teacher), after=record):
        teacher.base_model(ids, use_cache=False)
    return calls


@torch.no_grad()
def scores(student: PreTrainedModel, blocks: dict[str, Tensor]) -> dict[str, float]:
    """Perplexities, also without negative coefficients, and the share of negative coefficients."""
    numbers = perplexities(student.eval(), blocks)
    with without_negatives(student):
        numbers |= {f"{kind}_without": value for kind, value in perplexities(student, blocks).items()}
    coefficients = forward_pass(student, {"input_ids": torch.cat([x[:2] for x in blocks.values()])}).coefficients
    visible = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=coefficients[0].device).tril()
    numbers["negative_share"] = sum((a[..., visible] < 0).float().mean().item() for a in coefficients) / len(
        coefficients
    )
    return numbers


@torch.no_grad()
def perplexities(model: PreTrainedModel, blocks: dict[str, Tensor], temperature: float = 1.0) -> dict[str, float]:
    """The perplexity of each kind of text, with the logits divided by a temperature."""

    def losses(x: Tensor) -> Tensor:
        logits = model(x, use_cache=False).logits[:, :-1] / temperature
        return F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())

    return {
        kind: torch.stack([losses(x) for x in texts.split(4)]).mean().exp().item() for kind, texts in blocks.items()
    }


def table(runs: DataFrame) -> str:
    """One row a run."""
    runs = runs.assign(way=runs["way"].map(lambda name: WAYS[name].what))
    return listing(runs.drop(columns=["seed", "learning_rate"]).sort_values("reviews"), COLUMNS)


if __name__ == "__main__":
    main()
