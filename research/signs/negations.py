"""Negated words: does a head give them a coefficient of the other sign than without the negation?"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
from pandas import DataFrame
from torch import Tensor
from tqdm import tqdm
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from research.signs.observed import VIGINTILES, Layer, layers_of, share

NEGATIONS, REACH = ("not", "n't", "never", "no"), 3  # words between a negation and the end of its reach
VERSIONS = ("negated", "plain", "other", "negated, elsewhere", "plain, elsewhere")
QUERIES = ("[CLS]", "the word")
VARIANTS = ("", ", × label")


@dataclass(frozen=True)
class Example:
    """A polar word in the versions of a sentence: words and a place, by `VERSIONS`; its label, 1 or -1.

    The place is that of the polar word, and elsewhere that of the neutral word that "other" removes.
    """

    versions: list[tuple[list[str], int]]
    label: int


@dataclass(frozen=True)
class Read:
    """At the polar words, `[examples, versions, queries, layers, heads]`, and one dimension more for vectors.

    Attributes:
        coefficients: the sum over the pieces of the word.
        vectors: the part of the context that comes from the word, `a v`.
        gradients: of the logit difference by the context.
        logits: the logit difference, `[examples, versions]`.
    """

    coefficients: Tensor
    vectors: Tensor
    gradients: Tensor
    logits: Tensor


def examples_of(treebank: DataFrame) -> list[Example]:
    """The first negated polar word of each sentence that has one, and another word to remove.

    A polar word is a word with the label 0, 1, 3 or 4 of people, 2 being neutral.
    """
    examples = []
    for words, labels in zip(treebank["tokens"], treebank["token_labels"], strict=True):
        words = list(words)
        negation = [word.lower() in NEGATIONS for word in words]
        polar = [label != 2 and word.isalpha() for word, label in zip(words, labels, strict=True)]
        near = (
            (start, place)
            for start in range(len(words))
            for place in range(start + 1, min(start + 1 + REACH, len(words)))
            if negation[start] and polar[place] and not negation[place]
        )
        start, place = next(near, (None, None))
        neutral = [i for i, word in enumerate(words) if word.isalpha() and not polar[i] and not negation[i]]
        if place is None or not neutral:
            continue
        other = min(neutral, key=lambda i: abs(abs(place - i) - (place - start)))
        plain = words[:start] + words[start + 1 :]
        versions = [
            (words, place),
            (plain, place - 1),
            (words[:other] + words[other + 1 :], place - (other < place)),
            (words, other),
            (plain, other - (start < other)),
        ]
        examples.append(Example(versions, 1 if labels[place] > 2 else -1))
    return examples


def read(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: Iterable[Example]) -> Read:
    """Run the model on all versions of all examples."""
    rows = []
    for example in tqdm(examples, leave=False, unit="sentence"):
        run = cache(
            lambda words: _run(model, tokenizer([words.split(" ")], is_split_into_words=True, return_tensors="pt"))
        )
        for words, place in example.versions:
            inputs, logit, layers = run(" ".join(words))
            pieces = [i for i, word in enumerate(inputs.word_ids(0)) if word == place]
            queries = [0, pieces[0]]
            a = torch.stack([layer.coefficients[:, queries][..., pieces].transpose(0, 1) for layer in layers], 1)
            values = torch.stack([layer.values[:, pieces] for layer in layers])
            gradients = torch.stack([layer.gradient[:, queries].transpose(0, 1) for layer in layers], 1)
            rows.append((a.sum(-1), torch.einsum("qlhk,lhkd->qlhd", a, values), gradients, logit))
    return Read(*(torch.stack(column).unflatten(0, (-1, len(VERSIONS))) for column in zip(*rows, strict=True)))


def _run(model: PreTrainedModel, inputs: BatchEncoding) -> tuple[BatchEncoding, Tensor, list[Layer]]:
    """The inputs, the logit difference and the layers."""
    outputs, layers = layers_of(model, inputs, lambda outputs: outputs.logits[0, 1] - outputs.logits[0, 0])
    return inputs, (outputs.logits[0, 1] - outputs.logits[0, 0]).detach(), layers


def numbers(read: Read, first: Tensor) -> dict[str, Tensor]:
    """The three readings, `[examples, versions, queries, layers, heads]`; `first` are the examples that choose."""
    direction = read.gradients[first, :3].mean((0, 1))
    return {
        "coefficient": read.coefficients,
        "direction": (read.vectors * direction).sum(-1),
        "contribution": (read.vectors * read.gradients).sum(-1),
    }


def negative_of(values: Tensor, labels: Tensor, first: Tensor, free: bool = False) -> tuple[Tensor, str]:
    """Where a reading is negative, boolean `[counted examples, versions]`, and the head and query chosen for it.

    Args:
        values: the reading, `[examples, versions, queries, layers, heads]`.
        labels: of the polar words, 1 or -1.
        first: the examples that choose.
        free: whether negative means below a threshold that is chosen too, among the vigintiles, instead of below 0.
    """
    both = torch.stack([values, values * labels.reshape(-1, *[1] * (values.dim() - 1))], 2)
    usual = both[first, 1].sign().sum(0).sign()
    both, usual = (torch.cat([both, -both], 2), 1) if free else (both, usual)
    options = both[first, :2].flatten(0, 1).quantile(VIGINTILES, dim=0) if free else torch.zeros(1, *both.shape[2:])
    shares = torch.stack([(both[first, :2] * usual < option).double().mean(0) for option in options])
    change = shares[:, 0] - shares[:, 1]
    option, variant, query, layer, head = torch.unravel_index(change.argmax(), change.shape)
    chosen = (variant, query, layer, head)
    scores = both[~first][:, :, variant, query, layer, head] * (1 if free else usual[chosen])
    label = VARIANTS[variant % len(VARIANTS)]
    return scores < options[(option, *chosen)], f"layer {layer}, head {head}, query {QUERIES[query]}{label}"


def rows_of(reads: dict[str, Read], examples: list[Example], first: Tensor) -> list[dict]:
    """The rows of both models, "signed" and "softmax", with shares of the examples that count."""
    labels = torch.tensor([example.label for example in examples])
    rows, changes = [], {}
    for model, read in reads.items():
        positive = read.logits[~first] > 0
        changed = positive[:, 0] != positive[:, 1]
        rows.append({"model": model, "measure": "prediction changed", **share(changed)})
        for name, values in numbers(read, first).items():
            for free in (False, True):
                reading = f"{name}, threshold" if free else name
                negative, where = negative_of(values, labels, first, free)
                row = {"model": model, "reading": reading, "where": where if negative.any() else ""}
                columns = dict(zip(VERSIONS, negative.double().T, strict=True))
                change = changes[model, reading] = columns["negated"] - columns["plain"]
                columns |= {
                    "change": change,
                    "change, other word": columns["negated"] - columns["other"],
                    "change, elsewhere": columns["negated, elsewhere"] - columns["plain, elsewhere"],
                }
                rows += [row | {"measure": measure} | share(column) for measure, column in columns.items()]
                among = share(change * changed, changed.double())
                rows.append(row | {"measure": "change where the prediction changes"} | among)
    for reading in (name for model, name in changes if model == "softmax" and name != "coefficient"):
        difference = changes["signed", "coefficient"] - changes["softmax", reading]
        rows.append({"model": "signed − softmax", "reading": reading, "measure": "change", **share(difference)})
    return rows
