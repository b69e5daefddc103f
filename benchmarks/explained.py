"""Shared code of the benchmarks of explanations: their models by task and seed, sampled sentences, oriented heads."""

import argparse
import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measure import ROOT
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.explain import load_checkpoint, orient_heads, read_text
from hf_bidir.explain.checkpoint import Example
from hf_bidir.explain.orient import signs_are_free
from hf_bidir.finetune.data.sources import read_table

RUNS = ROOT / "runs/explained"
SEEDS = 3  # of the models in the tables
MODELS = {"softmax": "softmax", "tanhmax": "TanhMax"}  # and their names in tables


@dataclass(frozen=True)
class Task:
    """A task of MiniLM.

    Attributes:
        title: the name in tables.
        folder: of its files in DIR, {train,validation,test}.parquet.
        classes: their names; heads are oriented towards the last one.
        text: the column of the texts.
    """

    title: str
    folder: str
    classes: tuple[str, str] = ("negative", "positive")
    text: str = "text"

    def file(self, data_dir: Path, split: str) -> Path:
        return data_dir / self.folder / f"{split}.parquet"


TASKS = {
    "sst2": Task("SST-2", "sst2"),
    "agreement": Task("subject-verb agreement", "sva_linzen", ("singular", "plural"), "masked"),  # the number of a verb
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where data and models are, for every benchmark of explanations."""
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="holds a folder for each data set")
    parser.add_argument("--runs", type=Path, default=RUNS, help="the models: TASK-NAME-SEED, NAME softmax or tanhmax")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the models")


def folder_of(runs: Path, task: str, name: str, seed: int) -> Path:
    """The folder of a model of benchmarks/explained_models.py."""
    return runs / f"{task}-{name}-{seed}"


def models(options: argparse.Namespace, task: str) -> Iterator[tuple[str, int, Path]]:
    """The names, seeds and folders of the models of a task that exist; prints those that do not."""
    for seed in range(options.seeds):
        for name in MODELS:
            folder = folder_of(options.runs, task, name, seed)
            if (folder / "model.safetensors").is_file():
                yield name, seed, folder
            else:
                print(f"left out: {folder}; benchmarks/explained_models.py trains it")


def load(folder: Path) -> tuple[PreTrainedModel, Any]:
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


def orient(model: PreTrainedModel, tokenizer, texts: Iterable[str], target: int) -> Tensor | None:
    """Orient the heads by training texts; their shares of one sign `[layers, heads]`, None for softmax."""
    if not signs_are_free(model):
        return None
    batches = [
        dict(tokenizer(list(batch), padding=True, truncation=True, max_length=256, return_tensors="pt"))
        for batch in torch.utils.data.DataLoader(list(texts), batch_size=16)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # most heads have no consistent sign; a table shows their number
        return orient_heads(model, batches, target)
