"""Texts that repeat a text of an earlier split. A model may remember them instead of generalising."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from datasets import Dataset
from scipy.sparse import csr_matrix, triu

from hf_bidir.finetune.arguments import TextDataArguments
from hf_bidir.finetune.data.text_data import read_texts
from research.synthetic import write_splits

BEGINNING = 100  # characters
COMMON, SHARE = 100, 0.5  # texts; part of the 8-grams


def files_without_repeats(data: TextDataArguments, folder: Path) -> dict[str, Path]:
    """Write the splits of `data`, without texts that repeat one of an earlier split, as parquet files in `folder`."""
    return write_splits(without_repeats(dict(read_texts(data))), folder)


def without_repeats(splits: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """The splits, in their order, without the texts that repeat a text of an earlier one.

    A text repeats another one if their first 100 characters are equal, in lower case and with single spaces, or if
    they share at least half of the different word 8-grams of the one that has fewer: most of that text is then in the
    other one. 8-grams of more than 100 texts belong to a template and do not count as shared; this also bounds the
    number of compared pairs, so the time grows with the number of words. Texts of fewer than 8 words have no 8-grams;
    up to 100 characters they are compared as a whole.
    """
    texts = [text for rows in splits.values() for text in rows["text"][:]]
    split = np.repeat(np.arange(len(splits)), [len(rows) for rows in splits.values()])
    repeated = np.zeros(len(texts), bool)
    for later, earlier in (_same_beginning(texts), _shared_words(texts)):
        repeated[later[split[earlier] < split[later]]] = True
    return {
        name: rows.select(np.flatnonzero(~repeated[split == index]))
        for index, (name, rows) in enumerate(splits.items())
    }


def _same_beginning(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a row and an earlier one with the same beginning: the first and the last of these."""
    rows = pd.Series(range(len(texts)))
    groups = rows.groupby([" ".join(text.lower().split())[:BEGINNING] for text in texts])
    pairs = pd.DataFrame({"later": rows, "first": groups.transform("first"), "last": groups.shift()}).dropna()
    later = pairs["later"].to_numpy()
    return np.tile(later, 2), pairs[["first", "last"]].to_numpy(int).ravel("F")


def _shared_words(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a row and an earlier one that share enough 8-grams."""
    grams = _word_grams(texts)
    lengths, spread = (grams.getnnz(axis) for axis in (1, 0))
    comparable = grams[:, (spread > 1) & (spread <= COMMON)]
    shared = triu(comparable @ comparable.T, k=1).tocoo()
    enough = shared.data >= SHARE * np.minimum(lengths[shared.row], lengths[shared.col])
    return shared.col[enough], shared.row[enough]


def _word_grams(texts: Sequence[str]) -> csr_matrix:
    """A sparse matrix [texts, different word 8-grams] with a 1 for every 8-gram of a text."""
    numbers: defaultdict[str, int] = defaultdict(lambda: len(numbers))
    words = [np.fromiter((numbers[word] for word in re.findall(r"\w+", text.lower())), np.int64) for text in texts]
    row, grams = np.repeat(range(len(texts)), [len(numbered) for numbered in words]), np.concatenate(words)
    for step in (1, 2, 4):  # two adjacent n-grams become a 2n-gram; equal ones get the same number
        grams = pd.factorize(grams[:-step] * len(row) + grams[step:])[0]
    inside = row[:-7] == row[7:]  # not across two texts
    entries = np.ones(inside.sum(), np.int32), (row[:-7][inside], grams[inside])
    return csr_matrix(entries, shape=(len(texts), grams.max(initial=-1) + 1)).sign()
