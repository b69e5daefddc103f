"""What a healed language model keeps of the softmax model, and what its negative coefficients are worth.

    python -m research.healing.healed --data-dir DIR --healed runs/smollm2-healed-0 runs/smollm2-healed-1 ...

DIR has the files of `TEXTS`. The rows of results/healed.csv are SmolLM2-135M-Instruct with softmax, and the healed
folders: seeds of one recipe, over which the table that `make tables` makes has means.
"""

from pathlib import Path
from typing import Any

import torch
from pandas import DataFrame
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from benchmarks.measure import command_line, run_grid
from benchmarks.runs import markdown, spread, where
from hf_bidir import signed
from hf_bidir.checkpoints.layer_hooks import negative_share, without_negatives
from hf_bidir.checkpoints.reading import open_checkpoint
from research.healing.trials import MODEL, blocks_of, opened, perplexities
from research.language_models.run import looked_into

FILE = Path(__file__).with_name("results") / "healed.csv"
TEXTS = {  # the recipe reads the training files of the first two, and no messages
    "reviews": "imdb/test.parquet",
    "news": "ag_news/test.parquet",
    "messages": "20news_sports/bydate_test.parquet",
}
BLOCK, HELD_OUT, LOOKED_AT = 256, 24, 2  # tokens of a block; blocks of each kind
TEMPERATURES = [percent / 100 for percent in range(80, 141, 5)]
SOFTMAX = "softmax"
MEASURES = {  # rows of the table: heading, scale and decimal places
    "temperature": ("best temperature", 1, 2),
    **{kind: (f"perplexity, {kind}", 1, 1) for kind in TEXTS},
    **{f"{kind}_without": (f"{kind}, no negatives", 1, 1) for kind in TEXTS},
    "negative_share": ("negative coefficients, %", 100, 1),
    "first_share": ("attention on the first token, %", 100, 1),
    "largest": ("largest activation", 1, 0),
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", default=MODEL, help="the softmax model, a folder or a name on the Hub")
    parser.add_argument("--healed", type=Path, nargs="*", default=[], help="folders of healed models")
    options = parser.parse_args()
    teacher, tokenizer = opened(options.model)
    teacher = signed(teacher, 0.0)
    files = {kind: options.data_dir / file for kind, file in TEXTS.items()}
    blocks = {kind: blocks_of(tokenizer, file, 2 * HELD_OUT, BLOCK) for kind, file in files.items()}
    healed = {folder.name: folder for folder in options.healed}

    def run(model: str) -> tuple[dict[str, Any], list[Path]]:
        chosen = teacher if model == SOFTMAX else open_checkpoint(healed[model]).model(torch.float32)
        return measured(chosen, blocks), [*files.values()]

    run_grid(FILE, [{"model": name} for name in (SOFTMAX, *healed)], run)


@torch.no_grad()
def measured(model: PreTrainedModel, blocks: dict[str, Tensor]) -> dict[str, float]:
    """A row: `matched` with and without negative coefficients; and over a few blocks the share of negative
    coefficients over 0.001, that of the first token in the sum of magnitudes, and the largest magnitude of a hidden
    state."""
    numbers = matched(model, blocks)
    with without_negatives(model):
        numbers |= {f"{name}_without": value for name, value in matched(model, blocks).items()}
    few = torch.cat([texts[:LOOKED_AT] for texts in blocks.values()])
    coefficients, states = looked_into(model, few)
    sizes = torch.stack(coefficients).abs()[..., 1:, :]
    return numbers | {
        "negative_share": negative_share(model, [{"input_ids": few}]) or 0.0,
        "first_share": (sizes[..., 0] / sizes.sum(-1).clamp_min(1e-12)).mean().item(),
        "largest": max(layer.abs().max().item() for layer in states),
    }


def matched(model: PreTrainedModel, blocks: dict[str, Tensor]) -> dict[str, float]:
    """The temperature that suits the first half of each kind's blocks, and with it the perplexities of the second
    half: models that differ in confidence alone have the same."""
    halves = {kind: texts.chunk(2) for kind, texts in blocks.items()}
    temperature = best_temperature(model, torch.cat([first for first, _ in halves.values()]))
    reported = {kind: second for kind, (_, second) in halves.items()}
    return {"temperature": temperature} | perplexities(model, reported, temperature)


@torch.no_grad()
def best_temperature(model: PreTrainedModel, texts: Tensor) -> float:
    """The one of `TEMPERATURES` with the smallest perplexity on blocks of texts, `[blocks, tokens]`."""
    losses = torch.zeros(len(TEMPERATURES))
    for block in texts:
        logits = model(block[None], use_cache=False).logits[0, :-1]
        losses += torch.stack([cross_entropy(logits / temperature, block[1:]) for temperature in TEMPERATURES])
    return TEMPERATURES[losses.argmin()]


def table(runs: DataFrame) -> str:
    """One row a measure: of the softmax model, of the healed ones, and the difference of each of them."""
    softmax, healed = where(runs, model=SOFTMAX), runs[runs["model"] != SOFTMAX]
    rows = []
    for column, (heading, scale, digits) in MEASURES.items():
        differences = scale * (healed[column] - softmax[column].item())
        cells = [spread(group, column, scale, digits) for group in (softmax, healed)]
        rows.append([heading, *cells, ", ".join(f"{value:+.{digits}f}" for value in differences)])
    return markdown(["measure", SOFTMAX, f"healed, {len(healed)} seeds", "difference of each seed"], rows)


if __name__ == "__main__":
    main()
