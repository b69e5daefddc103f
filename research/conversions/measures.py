"""Measures of a converted model for run.py: accuracy with and without coefficients, human signs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoImageProcessor, AutoTokenizer, DataCollatorWithPadding, PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_coefficients, without_negatives
from hf_bidir.checkpoints.reading import read_bidir
from hf_bidir.explain import token_scores
from hf_bidir.explain.signs import negative_share, negative_variance_share
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.models import able_to_pad
from research.explanations.measures import by_word
from research.explanations.measures import human_sign as human_sign_of
from research.explanations.tasks import examples_of, load

CONTROLS = 1  # random removals of positive mass in each run
SENTENCES, POSITIVE = 200, 1  # whose words have human labels, and the class that is scored
Batch = dict[str, Tensor]


def signs(folder: Path, rows: Dataset, max_length: int) -> dict[str, float]:
    """Accuracy and cross-entropy with all coefficients and without some, and shares of negative ones.

    For a language model, they are those of the next token. Accuracies and shares are in [0, 1].
    """
    model = read_bidir(folder, torch.float32)
    batches = list(batches_of(folder, rows, max_length))
    inputs = [{name: x for name, x in batch.items() if name != "labels"} for batch in batches[::4]]
    varying = negative_variance_share(model, inputs)
    found = {"negative_share": negative_share(model, inputs) or 0.0, "negative_variance": varying.nanmean().item()}

    def measure(ending: str, *contexts: AbstractContextManager) -> None:
        scores = []
        for context in contexts:
            with context:
                scores.append(scores_of(model, batches))
        for name, values in zip(("accuracy", "loss"), zip(*scores, strict=True), strict=True):
            found[name + ending] = mean(values)

    measure("", nullcontext())
    measure("_without_negatives", without_negatives(model))
    measure("_without_weaker_sign", without_weaker_sign(model, varying))
    measure("_without_positive_mass", *(without_as_much_positive(model, seed) for seed in range(CONTROLS)))
    return found


def without_as_much_positive(model: PreTrainedModel, seed: int = 0) -> AbstractContextManager[None]:
    """Context in which each query loses as much positive mass as it has negative mass, from keys in a random order.

    The control for `without_negatives`: a model that depends on its negative coefficients loses more without them. The
    last coefficient that is reached keeps what remains of it; a query with more negative than positive mass loses all
    of the latter.
    """
    generator = torch.Generator().manual_seed(seed)

    def reduced(coefficients: Tensor) -> Tensor:
        order = torch.rand(coefficients.shape, generator=generator).to(coefficients.device).argsort(-1)
        positive = coefficients.clamp_min(0).gather(-1, order)
        to_remove = coefficients.clamp_max(0).sum(-1, keepdim=True).neg()
        removed = torch.minimum((to_remove - positive.cumsum(-1) + positive).clamp_min(0), positive)
        return coefficients - torch.zeros_like(coefficients).scatter(-1, order, removed)

    return edited_coefficients(model, reduced)


def without_weaker_sign(model: PreTrainedModel, negative_share: Tensor) -> AbstractContextManager[None]:
    """Context in which every head loses the coefficients of the sign that matters less to its output.

    Unlike `without_negatives`, this does not depend on the arbitrary sign of a head. A model that does not change
    inside the context uses one sign per head, as softmax does. The shares `[layers, heads]` are those of
    `negative_variance_share`.
    """
    kept = torch.where(negative_share > 0.5, -1.0, 1.0)[:, None, :, None, None]
    layers = cycle(range(len(kept)))

    def reduced(coefficients: Tensor) -> Tensor:
        sign = kept[next(layers)].to(coefficients)
        return sign * (sign * coefficients).clamp_min(0)

    return edited_coefficients(model, reduced)


def batches_of(folder: Path, rows: Dataset, max_length: int) -> Iterator[Batch]:
    """Inputs of 32 examples of similar length, with labels where the rows have them."""
    if "image" in rows.column_names:
        yield from DataLoader(rows, batch_size=32, collate_fn=ImageCollator(AutoImageProcessor.from_pretrained(folder)))
        return
    tokenizer = able_to_pad(AutoTokenizer.from_pretrained(folder), str(folder))
    inputs: list[dict[str, Any]] = []
    for row in rows:
        tokens = tokenizer(row["text"], truncation=True, max_length=max_length, return_token_type_ids=False)
        inputs.append(dict(tokens) | ({"label": row["label"]} if "label" in row else {}))
    inputs.sort(key=lambda one: len(one["input_ids"]))
    yield from map(dict, DataLoader(inputs, batch_size=32, collate_fn=DataCollatorWithPadding(tokenizer)))


@torch.inference_mode()
def scores_of(model: PreTrainedModel, batches: list[Batch]) -> tuple[float, float]:
    """Accuracy and cross-entropy in nats: of the labels, or of the next token where there are none."""
    hits, losses = [], []
    for batch in batches:
        logits = model(**{name: x for name, x in batch.items() if name != "labels"}).logits
        if "labels" in batch:
            labels = batch["labels"]
        else:
            keep = batch["attention_mask"][:, 1:].bool()
            logits, labels = logits[:, :-1][keep], batch["input_ids"][:, 1:][keep]
        hits.append(logits.argmax(-1) == labels)
        losses.append(torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    return torch.cat(hits).float().mean().item(), torch.cat(losses).mean().item()


def human_sign(folder: Path, data_dir: Path) -> float:
    """The share of polar words whose contribution has the sign of their human label, in sentences of the treebank."""
    model, tokenizer = load(folder)
    examples = examples_of("sst2", model, tokenizer, data_dir, SENTENCES)
    scored = [(one, token_scores(model, one.example.inputs, "contributions", POSITIVE)[0]) for one in examples]
    return human_sign_of([(one.words, by_word(one, scores, "contributions")) for one, scores in scored])["human_sign"]
