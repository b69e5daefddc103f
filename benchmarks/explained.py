"""Shared code of the benchmarks of explanations: models by name, sampled sentences, oriented heads."""

import argparse
import random
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev

import torch
from transformers import PreTrainedModel

from hf_bidir.explain import load_checkpoint, orient_heads, read_text
from hf_bidir.explain.checkpoint import Example
from hf_bidir.explain.orient import CONSISTENT, signs_are_free
from hf_bidir.finetune.data.sources import read_table


def named_folder(word: str) -> tuple[str, Path]:
    """`NAME=FOLDER` of the command line."""
    name, _, folder = word.partition("=")
    if not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(f"expected NAME=FOLDER of a checkpoint, got {word}")
    return name, Path(folder)


def load(folder: Path) -> tuple[PreTrainedModel, object]:
    model, tokenizer = load_checkpoint(folder)
    return model.requires_grad_(False), tokenizer


def sample(file: Path, count: int) -> list[dict]:
    """`count` rows of a table, sampled with a fixed seed."""
    rows = read_table(str(file)).to_list()
    return random.Random(0).sample(rows, min(count, len(rows)))


def words_of(tokenizer, words: Sequence[str], limit: int) -> Example | None:
    """The sentence as model inputs, truncated to `limit` word pieces; None if a word has no piece."""
    example = read_text(tokenizer, words, limit)
    kept = [token for token, special in zip(example.tokens, example.special, strict=True) if not special]
    return example if kept == list(words[: len(kept)]) else None


def orient(model: PreTrainedModel, tokenizer, texts: Iterable[str], target: int) -> None:
    """Orient the heads by training texts, unless the activation is softmax."""
    if not signs_are_free(model):
        return
    batches = [
        dict(tokenizer(list(batch), padding=True, truncation=True, max_length=256, return_tensors="pt"))
        for batch in torch.utils.data.DataLoader(list(texts), batch_size=16)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # most heads have no consistent sign; the table shows the effect
        share = orient_heads(model, batches, target)
    consistent = (share >= CONSISTENT).sum()
    print(
        f"heads oriented; {consistent} of {share.numel()} have a consistent sign, median share {share.nanmedian():.2f}"
    )


def mean_and_error(values: Sequence[float]) -> str:
    """Mean ± standard error; without the error for a single value, empty without values."""
    error = f" ± {stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{error}" if values else ""
