"""The paper's own protocol, including its faults, and the same weights evaluated without them.

    python -m research.paper.published --data-dir DIR      # hours on a CPU

Facts about the reference implementation, from its source; none of its code is used here. Padding and unknown words, and
on SST also the most frequent word, share the id 0, and nothing is masked. The vocabulary is that of SST for every data
set. Training is Adadelta, 100 epochs, without validation; on 20 Newsgroups the activations have different settings. The
evaluation multiplies the scores of a text by its label, so with TanhMax all negative texts get the same logit, that of
a context of zeros, and with softmax that of mean pooling. Different here: unknown words of SST are kept, and test texts
that repeat a training text are left out. A trained model becomes a row of results/published.csv, and one that has a row
is not trained again.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import trange

from hf_bidir.finetune.data.tokenizer import train_words
from hf_bidir.recurrent.configuration_bidir_rnn import BidirRnnConfig
from hf_bidir.recurrent.modeling_bidir_rnn import BidirRnnForSequenceClassification
from research.paper.data import splits_of
from research.paper.experiments import Experiment, read_experiments
from research.runs import command_line, grid, run_grid

FILE = Path(__file__).with_name("results") / "published.csv"
VOCABULARY_OF = "sst"  # the vocabulary of every data set
VOCABULARY, LENGTH, BATCH, EPOCHS = 8000, 30, 100, 100
LOSS_SCALE = 100  # the paper multiplies the loss by this
NO_PUNCTUATION = str.maketrans("", "", '()",.:;#&?!')


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="one sub-folder per data set, see README.md")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    experiments = {experiment.name: experiment for experiment in read_experiments(["texts"]) if experiment.as_published}
    read = cache(lambda name: published_splits(experiments[name], options.data_dir))

    def run(data: str, activation: str, seed: int) -> tuple[dict[str, float], tuple]:
        known = read(VOCABULARY_OF)["train"]["text"][:]
        vocabulary = published_vocabulary(known, experiments[data].published_first_id)
        ids = {name: encode(split["text"][:], vocabulary) for name, split in read(data).items()}
        labels = {name: torch.tensor(split["label"][:]) for name, split in read(data).items()}
        recipe = experiments[data].as_published[activation]
        model = train_as_published(ids["train"], labels["train"], activation, recipe, seed)
        return evaluate_as_published(model, ids["test"], labels["test"]), ()

    run_grid(FILE, grid(data=experiments, activation=("softmax", "tanhmax"), seed=range(options.seeds)), run)


def published_splits(experiment: Experiment, data_dir: Path) -> dict[str, Dataset]:
    """Training and test texts; held-out validation texts return to training, as nothing is selected."""
    splits, held_out = splits_of(experiment, data_dir)
    train = splits["train"]
    return {
        "train": concatenate_datasets([train, splits["validation"]]) if held_out else train,
        "test": splits["test"],
    }


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
    recipe: Mapping[str, Any],
    seed: int = 0,
) -> BidirRnnForSequenceClassification:
    """Train the paper's model with the paper's recipe.

    Args:
        ids, labels: `[texts, LENGTH]`, and `[texts]` of 0 and 1.
        recipe: "sizes", the embedding size, and the size of queries, keys and values; "scale", the divisor of the
            scores; "learning_rate" of Adadelta.
    """
    torch.manual_seed(seed)
    config = BidirRnnConfig(
        vocab_size=VOCABULARY + 1, embedding_size=recipe["sizes"][0], hidden_size=recipe["sizes"][1],
        attn_activation=activation, attn_scale=recipe["scale"], num_labels=1,
    )  # fmt: skip
    model = BidirRnnForSequenceClassification(config).train()
    nn.init.uniform_(model.rnn.embeddings.weight, -0.1, 0.1)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=recipe["learning_rate"])
    for _ in trange(EPOCHS, leave=False):
        for rows in torch.randperm(len(ids)).split(BATCH):
            loss = F.binary_cross_entropy_with_logits(positive_logits(model, ids[rows]), labels[rows].float())
            optimizer.zero_grad()
            (LOSS_SCALE * loss).backward()
            optimizer.step()
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


if __name__ == "__main__":
    main()
