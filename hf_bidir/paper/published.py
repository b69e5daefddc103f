"""The paper's own protocol, faults included, and the same weights evaluated without them.

What the reference does (facts of its source, read by us; none of its code is here): padding, unknown words and the most
frequent word share the id 0 and nothing is masked; the vocabulary is that of SST for every data set; Adadelta, 100
epochs, no validation; and at the evaluation the scores of a text are multiplied by its label, so that all negative
texts get one and the same answer with TanhMax (that of a context of zeros), and that of mean pooling with softmax.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from torch import Tensor
from torch.nn import functional as F
from tqdm import trange

from hf_bidir.common.errors import InputError
from hf_bidir.common.files import read_json, write_json
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.data.tokenizer import frequent_words, words_of
from hf_bidir.modeling.configuration_bidir_rnn import BidirRnnConfig
from hf_bidir.modeling.modeling_bidir_rnn import BidirRnnForSequenceClassification
from hf_bidir.paper.cells import keeping_failures
from hf_bidir.paper.data import validation_was_held_out
from hf_bidir.paper.experiments import Experiment

VOCABULARY, LENGTH, BATCH, EPOCHS = 8000, 30, 100, 100
NUMBERS = "numbers.json"


@dataclass(frozen=True)
class AsPublished:
    """Test accuracies in percent of one set of weights: with the label in the scores, without, and what decides it.

    Attributes:
        leaked: the label multiplies the scores.
        fair: it does not.
        negative_logit: the mean answer to negative texts when it does. With TanhMax it is one and the same for all of
            them, so that below 0 all count as right and above 0 none does.
    """

    leaked: float
    fair: float
    negative_logit: float


def published_vocabulary(texts: list[str]) -> dict[str, int]:
    """The most frequent words of these texts by id; the first one has 0, which is also padding and unknown words."""
    return {word: index for index, word in enumerate(frequent_words(texts)[:VOCABULARY])}


def encode(texts: list[str], vocabulary: dict[str, int]) -> Tensor:
    """`[texts, LENGTH]`, cut or filled up with 0."""
    rows = np.zeros((len(texts), LENGTH), dtype=np.int64)
    for row, text in zip(rows, texts, strict=True):
        ids = [vocabulary.get(word, 0) for word in words_of(text)[:LENGTH]]
        row[: len(ids)] = ids
    return torch.from_numpy(rows)


def train_as_published(
    ids: Tensor,
    labels: Tensor,
    activation: str,
    *,
    sizes: tuple[int, int] = (200, 100),
    learning_rate: float = 0.5,
    seed: int = 0,
    epochs: int = EPOCHS,
    progress: bool = True,
) -> BidirRnnForSequenceClassification:
    """The paper's model by the paper's recipe.

    Args:
        ids, labels: `[texts, LENGTH]` and `[texts]`, 0 or 1.
        activation: "softmax" or "tanhmax".
        sizes: of the embedding, and of queries, keys and values.
        learning_rate: of Adadelta; the paper has 0.05 and 0.5.
        seed: of weights, batches and dropout.
        epochs: of training.
        progress: show a progress bar.

    Raises:
        InputError: the loss became NaN or infinite.
    """
    torch.manual_seed(seed)
    config = BidirRnnConfig(
        vocab_size=VOCABULARY, embedding_size=sizes[0], hidden_size=sizes[1], attn_activation=activation, num_labels=1,
        initializer_range=1.0,
    )  # fmt: skip
    model = BidirRnnForSequenceClassification(config).train()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=learning_rate)
    for epoch in trange(epochs, desc=f"as published, {activation}", unit="epoch", leave=False, disable=not progress):
        for rows in torch.randperm(len(ids)).split(BATCH):
            loss = F.binary_cross_entropy_with_logits(answers(model, ids[rows]), labels[rows].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if not loss.isfinite():
            raise InputError(f"the loss of {activation} became {loss.item()} in epoch {epoch}")
    return model.eval()


def answers(model: BidirRnnForSequenceClassification, ids: Tensor) -> Tensor:
    """Logits of the positive class, `[texts]`; every position is attended to, padding too."""
    return model(ids, torch.ones_like(ids)).logits[:, 0]


@torch.no_grad()
def evaluate_as_published(model: BidirRnnForSequenceClassification, ids: Tensor, labels: Tensor) -> AsPublished:
    """The accuracy with and without the label in the scores; arguments as in `train_as_published`."""
    fair = ((answers(model, ids) > 0) == labels.bool()).float().mean().item()
    with label_in_scores(model, labels):
        leaked = answers(model, ids)
    accuracy = ((leaked > 0) == labels.bool()).float().mean().item()
    return AsPublished(100 * accuracy, 100 * fair, leaked[labels == 0].mean().item())


@contextmanager
def label_in_scores(model: BidirRnnForSequenceClassification, labels: Tensor) -> Iterator[None]:
    """While the context lasts, the scores of every text are multiplied by its label: the reference's first fault."""
    hook = model.rnn.attention.score.register_forward_hook(lambda *call: call[-1] * labels.view(-1, 1, 1))
    try:
        yield
    finally:
        hook.remove()


@dataclass(frozen=True)
class PublishedCell:
    """One set of weights by the paper's protocol: where its numbers are kept, and how they are made."""

    experiment: Experiment
    activation: str
    seed: int
    root: Path
    epochs: int = EPOCHS

    @property
    def folder(self) -> Path:
        rate = self.experiment.as_published["learning_rate"]
        return self.root / "as-published" / f"{self.experiment.name}-{self.activation}-lr{rate:g}-seed{self.seed}"

    @property
    def found(self) -> AsPublished | None:
        found = read_json(self.folder / NUMBERS)
        return AsPublished(**found) if found else None


def run_published(cell: PublishedCell, files: dict[str, Path], known: Path) -> None:
    """Train and evaluate a cell, unless it is there; what goes wrong is written into its folder.

    Args:
        cell: which one.
        files: of its data, by split.
        known: the training file whose vocabulary serves all data.
    """

    def work() -> None:
        vocabulary = published_vocabulary(read_table(str(known))["text"][:])
        splits = published_splits(files)
        ids = {name: encode(split["text"][:], vocabulary) for name, split in splits.items()}
        labels = {name: torch.tensor(split["label"][:]) for name, split in splits.items()}
        options = cell.experiment.as_published | {"seed": cell.seed, "epochs": cell.epochs, "progress": False}
        model = train_as_published(ids["train"], labels["train"], cell.activation, **options)
        write_json(cell.folder / NUMBERS, asdict(evaluate_as_published(model, ids["test"], labels["test"])))

    if not cell.found:
        keeping_failures(cell.folder, work)


def published_splits(files: dict[str, Path]) -> dict[str, Dataset]:
    """Training and test texts; validation texts that came from the training texts go back: nothing is selected."""
    train, validation, test = (read_table(str(files[name])) for name in ("train", "validation", "test"))
    held_out = validation_was_held_out(files["validation"])
    return {"train": concatenate_datasets([train, validation]) if held_out else train, "test": test}
