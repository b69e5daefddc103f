"""Shared code of the benchmarks of explanations: their models by task and seed, and sampled sentences."""

import argparse
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.explain import load_checkpoint, read_image, read_text
from hf_bidir.explain.inputs.parts import segmented
from hf_bidir.explain.inputs.text import Example
from hf_bidir.finetune.data.sources import read_table
from research.conversions.run import TASKS as TRAINED
from research.runs import RUNS

NEUTRAL_GRADE = 2  # of a word in the treebank, on the scale 0 to 4
SEEDS = 3  # of the models in the tables
MODELS = {"softmax": "softmax", "tanhmax": "TanhMax"}  # and their names in tables
FOLDERS = {"tanhmax": "encoder", "converted": "tanhmax-all"}  # what research.conversions.run calls them


@dataclass(frozen=True)
class Task:
    """A task of MiniLM, or of a small ViT.

    Attributes:
        title: the name in tables.
        folder: of its files in DIR.
        text: the column of the texts; None for images.
        trained_on: the task whose models are measured; by default this one.
    """

    title: str
    folder: str
    text: str | None = "text"
    trained_on: str | None = None

    def file(self, data_dir: Path, split: str) -> Path:
        return data_dir / self.folder / f"{split}.parquet"


def _trained(name: str) -> Task:
    """A task of research.conversions.run."""
    data = TRAINED[name]
    return Task(data.title, data.folder, data.text)


TASKS = {
    "sst2": _trained("sst2"),
    "agreement": _trained("agreement"),
    "movies": Task("movie reviews", "movie_rationales", trained_on="sst2"),
    "fashion": _trained("fashion"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where data and models are, for every benchmark of explanations."""
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="holds a folder for each data set")
    parser.add_argument("--runs", type=Path, default=RUNS, help="the models: TASK-NAME-SEED")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the models")


def folder_of(runs: Path, task: str, name: str, seed: int) -> Path:
    """The folder of a model of research.conversions.run."""
    return runs / f"{TASKS[task].trained_on or task}-{FOLDERS.get(name, name)}-{seed}"


def models(options: argparse.Namespace, task: str, names: Iterable[str] = MODELS) -> Iterator[tuple[str, int, Path]]:
    """The names, seeds and folders of the models of a task that exist; prints those that do not."""
    for seed in range(options.seeds):
        for name in names:
            folder = folder_of(options.runs, task, name, seed)
            if (folder / "model.safetensors").is_file():
                yield name, seed, folder
            else:
                print(f"left out: {folder}; research.conversions.run trains it")


def load(folder: Path) -> tuple[PreTrainedModel, Any]:
    model, tokenizer = load_checkpoint(folder)
    return model.requires_grad_(False), tokenizer


def sample(file: Path, count: int) -> list[dict]:
    """`count` rows of a table, sampled with a fixed seed."""
    rows = read_table(str(file))
    return [rows[index] for index in random.Random(0).sample(range(len(rows)), min(count, len(rows)))]


LIMITS = {"movies": 64}  # word pieces of a text


@dataclass(frozen=True)
class Explained:
    """A test example with its class and prediction, and what people say of its words.

    Attributes:
        words: a number for each word: its sentiment from -2 to 2, or 1 where it is marked as a reason; None if unknown.
    """

    example: Example
    label: int
    predicted: int
    words: np.ndarray | None = None

    @property
    def special_pieces(self) -> Tensor:
        """Positions that are never deleted, boolean `[1, length]`: special tokens, and [MASK] in place of a verb."""
        special = [
            is_special or token == "[MASK]"
            for is_special, token in zip(self.example.special, self.example.tokens, strict=True)
        ]
        return torch.tensor(special)[self.example.token_of_piece][None]


def examples_of(
    task: str, model: PreTrainedModel, processor, data_dir: Path, count: int, split: str = "test"
) -> Iterator[Explained]:
    """Sampled examples of a task; in the test split of SST-2 and of movie reviews those that have human labels."""
    data, people = TASKS[task], split == "test"
    if data.text is None:
        yield from _images(model, processor, data.file(data_dir, split), count)
        return
    trees = task == "sst2" and people
    rows = sample(data_dir / "sst_trees/test.parquet" if trees else data.file(data_dir, split), count)
    for row in rows:
        words = row["tokens"] if trees else row[data.text].split()
        example = words_of(processor, words, LIMITS.get(task, 512))
        if example is None or (trees and example.truncated):
            continue
        labels = None
        if trees:
            labels = np.array(row["token_labels"]) - NEUTRAL_GRADE
        elif task == "movies" and people:
            labels = np.array(row["rationale_mask"])[: (~np.array(example.special)).sum()]
            if not 0 < labels.sum() < len(labels):
                continue
        label = int(row["label5"] > NEUTRAL_GRADE) if trees else row["label"]
        yield Explained(example, label, _predicted(model, example), labels)


def _images(model: PreTrainedModel, processor, file: Path, count: int) -> Iterator[Explained]:
    for row in sample(file, count):
        with tempfile.NamedTemporaryFile(suffix=".png") as picture:
            row["image"].save(picture.name)
            example = read_image(model, processor, picture.name)
        yield Explained(example, row["label"], _predicted(model, example))


@torch.no_grad()
def _predicted(model: PreTrainedModel, example: Example) -> int:
    return int(model(**example.inputs).logits.argmax())


def words_of(tokenizer, words: Sequence[str], limit: int) -> Example | None:
    """The sentence as model inputs, truncated to `limit` word pieces; None if a word has no piece."""
    example = read_text(tokenizer, segmented(" ".join(words), words), limit)
    words_read = [token for token, special in zip(example.tokens, example.special, strict=True) if not special]
    return example if words_read == list(words[: len(words_read)]) else None
