"""What do 8-bit weights cost in accuracy, and what do they save? For the published checkpoints, TanhMax and softmax.

`hf-bidir quantise` makes the copies; the scores are those of `hf-bidir evaluate` on the test split, or the validation
split of a language model. Beside them what makes a model hard to quantise (Bondarenko et al. 2023): the largest
activation between layers, the mean kurtosis of activations, and the share of attention on tokens without content:
[CLS] and [SEP], the class token of an image, the first token of a language model. A signed head has no need of them,
since its coefficients can sum to 0.

    python benchmarks/int8.py --data-dir DIR    # DIR/sst2/test.parquet, imdb/test.parquet, fashion_mnist/
    python benchmarks/int8.py --data-dir DIR --checkpoints model_cards/digits-*

Checkpoints without weights are left out; `make checkpoints` trains them. Others can be named, such as the models of
research/explanations/models.py, if the name of their folder starts with that of their data.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedModel

from benchmarks.measure import ROOT, options_of, write_table
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.deploy.int8 import quantise_checkpoint
from hf_bidir.explain.forward import record_coefficients
from hf_bidir.hub.evaluate import evaluate_checkpoint, read_examples

DATA = {  # by the beginning of a folder's name: file below --data-dir (None: comes with scikit-learn), and split
    "digits": (None, "test"),
    "fashion": ("fashion_mnist/test.parquet", "test"),
    "imdb": ("imdb/test.parquet", "validation"),
    "sst2": ("sst2/test.parquet", "test"),
}
LOOKED_AT = 64  # examples, or blocks, for activations and attention
NO_COLUMNS = {"text_column": None, "image_column": None, "label_column": None}


def main() -> None:
    cards = {"type": Path, "nargs": "+", "default": sorted((ROOT / "model_cards").glob("*/"))}
    options = options_of(__doc__, "int8", data_dir={"type": Path, "required": True}, checkpoints=cards)
    rows = []
    for folder in tqdm(options.checkpoints, unit="checkpoint"):
        if (folder / "model.safetensors").is_file():
            rows.append([folder.name, *measured(folder, options.data_dir)])
    notes = (
        "Scores are accuracies in percent, for language models the perplexity, where lower is better. Size: of the "
        f"weights file. Activations and attention: over {LOOKED_AT} examples, blank where a model has no such layers."
    )
    header = ["checkpoint", "full", "int8", "int8 − full", "MB", "MB in int8", "largest activation", "kurtosis",
              "attention without content, %"]  # fmt: skip
    write_table(options.output, "8-bit weights", notes, header, rows, "cpu")


def measured(folder: Path, data_dir: Path) -> list[str]:
    file, split = next(data for start, data in DATA.items() if folder.name.startswith(start))
    data = None if file is None else str(data_dir / file)
    with tempfile.TemporaryDirectory() as scratch:
        copy = quantise_checkpoint(folder, Path(scratch, folder.name))
        shutil.copy(folder / "run.json", copy)
        scores = [score(one, data, split) for one in (folder, copy)]
        sizes = [(one / "model.safetensors").stat().st_size / 1e6 for one in (folder, copy)]
    return [
        *(f"{one:.2f}" for one in scores), f"{scores[1] - scores[0]:+.2f}", *(f"{one:.1f}" for one in sizes),
        *inner_numbers(folder, data, split),
    ]  # fmt: skip


def score(folder: Path, data: str | None, split: str) -> float:
    scores = evaluate_checkpoint(folder, data, split=split).scores
    return scores["perplexity"] if "perplexity" in scores else 100 * scores["accuracy"]


@torch.no_grad()
def inner_numbers(folder: Path, data: str | None, split: str) -> list[str]:
    """The largest activation between layers, their kurtosis, and the attention on tokens without content."""
    model = open_checkpoint(folder).model(torch.float32)
    if not getattr(model, "attends_between_tokens", True):
        return ["", "", ""]
    examples, _, collator = read_examples(model, folder, data, split, NO_COLUMNS)
    first = examples.select(range(min(LOOKED_AT, len(examples))))
    largest, kurtosis, without_content = [], [], []
    for batch in DataLoader(first, batch_size=16, collate_fn=collator):
        batch.pop("labels")
        outputs, coefficients = record_coefficients(model, batch | {"output_hidden_states": True})
        states = [kept(state, batch) for state in outputs.hidden_states[1:]]
        largest.append(max(state.abs().max().item() for state in states))
        kurtosis.append(np.mean([stats.kurtosis(state.flatten().double().numpy(), fisher=False) for state in states]))
        sizes = torch.stack(coefficients).abs().mean((0, 2))  # [batch, queries, keys]
        shares = (sizes * ~content(model, folder, batch)[:, None]).sum(-1) / sizes.sum(-1).clamp_min(1e-12)
        without_content.append(kept(shares.unsqueeze(-1), batch).mean().item())
    return [f"{max(largest):.1f}", f"{np.mean(kurtosis):.1f}", f"{100 * np.mean(without_content):.1f}"]


def kept(states: Tensor, batch: dict[str, Any]) -> Tensor:
    """States `[batch, length, width]` at tokens that are not padding, `[tokens, width]`."""
    keep = batch.get("attention_mask")
    return states.flatten(0, 1) if keep is None or keep.shape != states.shape[:2] else states[keep.bool()]


def content(model: PreTrainedModel, folder: Path, batch: dict[str, Any]) -> Tensor:
    """Which keys are words or patches, boolean `[batch, keys]`."""
    if model.main_input_name == "pixel_values":
        image, patch = batch["pixel_values"].shape, model.config.patch_size
        patches = (image[2] // patch) * (image[3] // patch)
        return (torch.arange(patches + 1) > 0).expand(image[0], -1)
    ids = batch["input_ids"]
    if type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")):
        return (torch.arange(ids.shape[1]) > 0).expand_as(ids)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}  # which stands for a word
    return ~torch.isin(ids, torch.tensor(sorted(special)))


if __name__ == "__main__":
    main()
