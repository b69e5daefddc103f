"""The paper's own protocol, including its faults, and the same weights evaluated without them.

Facts about the reference implementation, from its source; none of its code is used here. Padding and unknown words, and
on SST also the most frequent word, share the id 0, and nothing is masked. The vocabulary is that of SST for every data
set. Training is Adadelta, 100 epochs, without validation; on 20 Newsgroups the activations have different settings. The
evaluation multiplies the scores of a text by its label, so with TanhMax all negative texts get the same logit, that of
a context of zeros, and with softmax that of mean pooling. Different here: unknown words of SST are kept, and test texts
that repeat a training text are left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.runs import SEED, VERSIONS, add_runs, libraries
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.data.tokenizer import train_words
from hf_bidir.finetune.record import library_versions
from hf_bidir.recurrent.configuration_bidir_rnn import BidirRnnConfig
from hf_bidir.recurrent.modeling_bidir_rnn import BidirRnnForSequenceClassification
from research.paper.cells import keeping_failures
from research.paper.data import validation_was_held_out
from research.paper.experiments import Experiment

VOCABULARY, LENGTH, BATCH, EPOCHS = 8000, 30, 100, 100
LOSS_SCALE = 100  # the paper multiplies the loss by this
NO_PUNCTUATION = str.maketrans("", "", '()",.:;#&?!')
PUBLISHED = "published.csv"


def published_vocabulary(texts: list[str], first_id: int = 1) -> dict[str, int]:
    """Ids of the most frequent words, from `first_id`; 0 stands for padding and unknown words."""
    special = ["[PAD]", "[UNK]"]
    tokenizer = train_words(texts, vocab_size=len(special) + VOCABULARY, max_length=LENGTH)
    numbers = tokenizer.get_vocab()
    words = sorted(numbers.keys() - special, key=lambda word: numbers[word])
    return {word: first_id + index for index, word in enumerate(words)}


def encode(texts: list[str], vocabulary: dict[str, int]) -> Tensor:
    """Ids of the words between spaces, without punctuation, `[texts, LENGTH]`; truncated or padded with 0."""
    rows = np.zeros((len(texts), LENGTH), dtype=np.int64)
    for row, text in zip(rows, texts, strict=True):
        words = text.lower().translate(NO_PUNCTUATION).replace("<br />", "").split(" ")
        ids = [vocabulary.get(word, 0) for word in words[:LENGTH]]
        row[: len(ids)] = ids
    return torch.from_numpy(rows)


def train_as_published(
    ids: Tensor,
    labels: Tensor,
    activation: str,
    *,
    sizes: tuple[int, int] = (200, 100),
    scale: float = 5.0,
    learning_rate: float = 0.5,
    seed: int = 0,
    epochs: int = EPOCHS,
) -> BidirRnnForSequenceClassification:
    """Train the paper's model with the paper's recipe.

    Args:
        ids, labels: `[texts, LENGTH]`, and `[texts]` of 0 and 1.
        sizes: the embedding size, and the size of queries, keys and values.
        scale: divisor of the scores; the paper has 5, and 3 for TanhMax on 20 Newsgroups.
        learning_rate: of Adadelta; the paper has 0.05 and 0.5. InputError if the loss becomes NaN or infinite.
    """
    torch.manual_seed(seed)
    config = BidirRnnConfig(
        vocab_size=VOCABULARY + 1, embedding_size=sizes[0], hidden_size=sizes[1], attn_activation=activation,
        attn_scale=scale, num_labels=1,
    )  # fmt: skip
    model = BidirRnnForSequenceClassification(config).train()
    nn.init.uniform_(model.rnn.embeddings.weight, -0.1, 0.1)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=learning_rate)
    for epoch in range(epochs):
        for rows in torch.randperm(len(ids)).split(BATCH):
            loss = F.binary_cross_entropy_with_logits(positive_logits(model, ids[rows]), labels[rows].float())
            optimizer.zero_grad()
            (LOSS_SCALE * loss).backward()
            optimizer.step()
        if not loss.isfinite():
            raise InputError(f"expected a finite loss; that of {activation} became {loss.item()} in epoch {epoch}")
    return model.eval()


def positive_logits(model: BidirRnnForSequenceClassification, ids: Tensor) -> Tensor:
    """Logits of the positive class, `[texts]`; all positions are attended to, including padding."""
    return model(ids, torch.ones_like(ids)).logits[:, 0]


@torch.no_grad()
def evaluate_as_published(model: BidirRnnForSequenceClassification, ids: Tensor, labels: Tensor) -> dict[str, float]:
    """Test accuracies in percent, with the label multiplied into the scores ("leaked") and without it ("fair").

    With the label, all negative texts of TanhMax have the same logit; "negative_logit" is its mean over negative texts:
    below 0 all of them count as correct and above 0 none does. Arguments as in `train_as_published`.
    """
    fair = ((positive_logits(model, ids) > 0) == labels.bool()).float().mean().item()
    with label_in_scores(model, labels):
        leaked = positive_logits(model, ids)
    accuracy = ((leaked > 0) == labels.bool()).float().mean().item()
    return {"leaked": 100 * accuracy, "fair": 100 * fair, "negative_logit": leaked[labels == 0].mean().item()}


@contextmanager
def label_in_scores(model: BidirRnnForSequenceClassification, labels: Tensor) -> Iterator[None]:
    """Multiply the scores of every text by its label inside the context, as the reference's evaluation does."""
    hook = model.rnn.attention.score.register_forward_hook(lambda *call: call[-1] * labels.view(-1, 1, 1))
    try:
        yield
    finally:
        hook.remove()


@dataclass(frozen=True)
class PublishedCell:
    """One training run with the paper's protocol; its row in published.csv of `root`."""

    experiment: Experiment
    activation: str
    seed: int
    root: Path
    epochs: int = EPOCHS

    @property
    def key(self) -> dict[str, Any]:
        """The columns that identify the row."""
        options = ", ".join(f"{name} {value}" for name, value in self._options.items())
        run = {"data": self.experiment.name, "activation": self.activation, "epochs": self.epochs}
        return run | {"options": options, SEED: self.seed}

    @property
    def _options(self) -> dict[str, Any]:
        return self.experiment.as_published[self.activation]

    def train(self, files: dict[str, Path], known: Path) -> None:
        """Train, evaluate and save the row; an error is saved and not raised. The file `known` gives the vocabulary."""

        def work() -> None:
            vocabulary = published_vocabulary(read_table(str(known))["text"][:], self.experiment.published_first_id)
            splits = published_splits(files)
            ids = {name: encode(split["text"][:], vocabulary) for name, split in splits.items()}
            labels = {name: torch.tensor(split["label"][:]) for name, split in splits.items()}
            options = self._options | {"seed": self.seed, "epochs": self.epochs}
            model = train_as_published(ids["train"], labels["train"], self.activation, **options)
            row = self.key | evaluate_as_published(model, ids["test"], labels["test"])
            add_runs(self.root / PUBLISHED, [row | {VERSIONS: libraries(library_versions())}], list(self.key))

        name = f"{self.experiment.name}-{self.activation}-lr{self._options['learning_rate']:g}-seed{self.seed}"
        keeping_failures(self.root / "as-published" / name, work)


def published_splits(files: dict[str, Path]) -> dict[str, Dataset]:
    """Training and test texts; held-out validation texts return to training, as nothing is selected."""
    train, validation, test = (read_table(str(files[name])) for name in ("train", "validation", "test"))
    held_out = validation_was_held_out(files["validation"])
    return {"train": concatenate_datasets([train, validation]) if held_out else train, "test": test}
