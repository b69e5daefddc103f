"""Negated words: does a head give them a coefficient of the other sign than without the negation?"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from pandas import DataFrame
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from research.signs.observed import layers_of, share

NEGATIONS, REACH = ("not", "n't", "never", "no"), 3  # words between a negation and the end of its reach
VERSIONS = ("negated", "plain", "other")
QUERIES = ("[CLS]", "the word")
VARIANTS = ("", ", × label")


@dataclass(frozen=True)
class Example:
    """A polar word in the versions of a sentence: words and its place, by `VERSIONS`; its label, 1 or -1."""

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
    found = []
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
        versions = [(words, place), *((words[:i] + words[i + 1 :], place - (i < place)) for i in (start, other))]
        found.append(Example(versions, 1 if labels[place] > 2 else -1))
    return found


def read(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: Iterable[Example]) -> Read:
    """Run the model on all versions of all examples."""
    rows = []
    for example in tqdm(examples, leave=False, unit="sentence"):
        for words, place in example.versions:
            inputs = tokenizer([words], is_split_into_words=True, return_tensors="pt")
            pieces = [i for i, word in enumerate(inputs.word_ids(0)) if word == place]
            outputs, layers = layers_of(model, inputs, lambda outputs: outputs.logits[0, 1] - outputs.logits[0, 0])
            queries = [0, pieces[0]]
            a = torch.stack([layer.coefficients[:, queries][..., pieces].transpose(0, 1) for layer in layers], 1)
            values = torch.stack([layer.values[:, pieces] for layer in layers])
            gradients = torch.stack([layer.gradient[:, queries].transpose(0, 1) for layer in layers], 1)
            logit = (outputs.logits[0, 1] - outputs.logits[0, 0]).detach()
            rows.append((a.sum(-1), torch.einsum("qlhk,lhkd->qlhd", a, values), gradients, logit))
    return Read(*(torch.stack(column).unflatten(0, (-1, len(VERSIONS))) for column in zip(*rows, strict=True)))


def numbers(read: Read, first: Tensor) -> dict[str, Tensor]:
    """The three readings, `[examples, versions, queries, layers, heads]`; `first` are the examples that choose."""
    direction = read.gradients[first].mean((0, 1))
    return {
        "coefficient": read.coefficients,
        "direction": (read.vectors * direction).sum(-1),
        "contribution": (read.vectors * read.gradients).sum(-1),
    }


def negative_of(values: Tensor, labels: Tensor, first: Tensor) -> tuple[Tensor, str]:
    """Where a reading is negative, boolean `[counted examples, versions]`, and the head and query chosen for it."""
    shape = [-1] + [1] * (values.dim() - 1)
    both = torch.stack([values, values * labels.reshape(shape)], 2)
    usual = both[first, 1].sign().sum(0).sign()
    negative = both * usual < 0
    shares = negative[first].double().mean(0)
    variant, query, layer, head = torch.unravel_index((shares[0] - shares[1]).argmax(), shares.shape[1:])
    where = f"layer {layer}, head {head}, query {QUERIES[query]}{VARIANTS[variant]}"
    return negative[~first][:, :, variant, query, layer, head], where


def rows_of(reads: dict[str, Read], examples: list[Example], first: Tensor) -> list[dict]:
    """The rows of both models, "signed" and "softmax", with shares of the examples that count."""
    labels = torch.tensor([example.label for example in examples])
    rows, changes = [], {}
    for model, read in reads.items():
        positive = read.logits[~first] > 0
        changed = positive[:, 0] != positive[:, 1]
        rows.append({"model": model, "measure": "prediction changed", **share(changed)})
        for name, values in numbers(read, first).items():
            negative, where = negative_of(values, labels, first)
            if not negative.any():
                where = ""
            own = {"model": model, "reading": name, "where": where}
            rows += [
                own | {"measure": version} | share(column) for version, column in zip(VERSIONS, negative.T, strict=True)
            ]
            change = negative[:, 0].double() - negative[:, 1].double()
            changes[model, name] = change
            rows += [
                own | {"measure": "change"} | share(change),
                own | {"measure": "change, other word"} | share(negative[:, 0].double() - negative[:, 2].double()),
                own | {"measure": "change where the prediction changes"} | share(change * changed, changed.double()),
            ]
    for name in ("direction", "contribution"):
        difference = changes["signed", "coefficient"] - changes["softmax", name]
        rows.append({"model": "signed − softmax", "reading": name, "measure": "change", **share(difference)})
    return rows
