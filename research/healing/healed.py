"""What a healed language model keeps of the softmax model, and what its negative coefficients are worth.

    python -m research.healing.healed --data-dir DIR --healed runs/smollm2-healed ...

DIR has imdb/test.parquet and ag_news/test.parquet. Each model is a row of results/healed.csv: SmolLM2-135M-Instruct
with softmax, the same with its logits divided by a temperature, and the healed folders. `make tables` makes the table.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pandas import DataFrame
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.measure import command_line, run_grid
from benchmarks.runs import listing
from hf_bidir import signed
from hf_bidir.checkpoints.layer_hooks import negative_share, without_negatives
from hf_bidir.checkpoints.reading import open_checkpoint
from research.healing.trials import MODEL, TEXTS, blocks_of, opened, perplexities
from research.language_models.run import looked_into, quantised

FILE = Path(__file__).with_name("results") / "healed.csv"
BLOCK, HELD_OUT, LOOKED_AT, BITS, TEMPERATURES = 256, 24, 2, (8, 4), (1.1, 1.2)
COLUMNS = {  # of the table: heading and format
    "model": ("model", "{}"),
    **{kind: (kind, "{:.1f}") for kind in TEXTS},
    **{f"{kind}_without": (f"{kind}, no negatives", "{:.1f}") for kind in TEXTS},
    **{f"{kind}_{bits}_bits": (f"{kind}, {bits} bits", "{:.4g}") for bits in BITS for kind in TEXTS},
    "negative_share": ("negative coefficients", "{:.0%}"),
    "first_share": ("on the first token", "{:.0%}"),
    "largest": ("largest activation", "{:.0f}"),
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", default=MODEL, help="the softmax model, a folder or a name on the Hub")
    parser.add_argument("--healed", type=Path, nargs="*", default=[], help="folders of healed models")
    options = parser.parse_args()
    teacher, tokenizer = opened(options.model)
    teacher = signed(teacher, 0.0)
    files = {kind: options.data_dir / f"{folder}/test.parquet" for kind, folder in TEXTS.items()}
    blocks = {kind: blocks_of(tokenizer, file, HELD_OUT, BLOCK) for kind, file in files.items()}
    softmax = {"softmax": 1.0} | {f"softmax, temperature {value}": value for value in TEMPERATURES}
    healed = {folder.name: folder for folder in options.healed}

    def run(model: str) -> tuple[dict[str, Any], list[Path]]:
        chosen = teacher if model in softmax else open_checkpoint(healed[model]).model(torch.float32)
        temperature = softmax.get(model, 1.0)
        if temperature != 1:
            return perplexities(chosen, blocks, temperature), [*files.values()]
        return measured(chosen, blocks), [*files.values()]

    run_grid(FILE, [{"model": name} for name in (*softmax, *healed)], run)


@torch.no_grad()
def measured(model: PreTrainedModel, blocks: dict[str, Tensor]) -> dict[str, float]:
    """A row: perplexities; without negative coefficients; with weights and inputs of linear layers in few bits; and
    over a few blocks the share of negative coefficients over 0.001, that of the first token in the sum of magnitudes,
    and the largest magnitude of a hidden state."""
    numbers = perplexities(model, blocks)

    def add(ending: str, measure: Callable[[], dict[str, float]]) -> None:
        numbers.update({f"{kind}_{ending}": value for kind, value in measure().items()})

    with without_negatives(model):
        add("without", lambda: perplexities(model, blocks))
    for bits in BITS:
        add(f"{bits}_bits", lambda bits=bits: perplexities(quantised(model, bits), blocks))
    few = torch.cat([texts[:LOOKED_AT] for texts in blocks.values()])
    coefficients, states = looked_into(model, few)
    sizes = torch.stack(coefficients).abs()[..., 1:, :]
    return numbers | {
        "negative_share": negative_share(model, [{"input_ids": few}]) or 0.0,
        "first_share": (sizes[..., 0] / sizes.sum(-1).clamp_min(1e-12)).mean().item(),
        "largest": max(layer.abs().max().item() for layer in states),
    }


def table(runs: DataFrame) -> str:
    """One row a model."""
    return listing(runs, COLUMNS)


if __name__ == "__main__":
    main()
