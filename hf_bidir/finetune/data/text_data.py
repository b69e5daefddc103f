"""Texts with classes and plain text: read, and made into tokens."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.kinds import longest_text
from hf_bidir.common.errors import InputError

from ..arguments import TextDataArguments, UnlabelledDataArguments
from .image_data import batch_generator
from .sources import read_table
from .splits import (
    LABEL,
    Column,
    Splits,
    has_text,
    labelled_splits,
    raw_splits,
    unlabelled_splits,
    without_test,
)

logger = logging.getLogger(__name__)

JOINED = 10_000  # texts joined at once
Rows = TypeVar("Rows", Dataset, Splits)
TEXT = Column("text", ("text", "sentence"))


def read_texts(data: TextDataArguments) -> Splits:
    """Read the splits with the columns `text` and `label`; errors as in `labelled_splits`."""
    return labelled_splits(raw_splits(data, TEXT, LABEL), data, TEXT)


def read_documents(data: UnlabelledDataArguments) -> Splits:
    """Read train and validation with the column `text`, without blank rows.

    Raises:
        InputError: no data, no such file or column, or nothing but empty texts.
    """
    unit = getattr(data, "sample_by", "line")
    column = replace(TEXT, read=partial(read_table, sample_by=unit))
    raw = without_test(raw_splits(data, column))
    for name, split in raw.items():
        raw[name] = split.filter(has_text, input_columns="text")
    return unlabelled_splits(raw, data)


def tokenize(rows: Rows, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Rows:
    """The rows with `input_ids` and `attention_mask` in place of `text`, cut to `max_length` tokens."""
    cut = partial(tokenizer, truncation=True, max_length=max_length, return_token_type_ids=False)
    return rows.map(cut, batched=True, input_columns="text", remove_columns="text", desc="tokenizing")


def cut_into_snippets(splits: Splits, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Splits:
    """Each text cut into snippets of at most `max_length` tokens, as `input_ids` and `attention_mask`."""

    def cut(batch: dict[str, list]) -> dict[str, list]:
        windows = tokenizer(
            batch["text"],
            truncation=True,
            max_length=max_length,
            return_overflowing_tokens=True,
            return_token_type_ids=False,
        )
        return {name: windows[name] for name in ("input_ids", "attention_mask")}

    return splits.map(cut, batched=True, remove_columns="text", desc="cutting snippets")


def cut_into_blocks(
    splits: Splits,
    tokenizer: PreTrainedTokenizerBase,
    size: int,
    columns: Sequence[str] = ("input_ids", "labels"),
) -> Splits:
    """The texts, each with an end token, joined and cut into blocks of `size` tokens, the same in all columns.

    What is left of each `JOINED` texts is dropped.

    Raises:
        InputError: the tokenizer has no end token, or a split has fewer tokens than a block.
    """
    end = tokenizer.eos_token_id
    if end is None:
        raise InputError("expected a tokenizer with a token that ends a text (eos_token), which parts joined texts")

    def cut(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        rows = tokenizer(batch["text"], return_attention_mask=False, verbose=False)["input_ids"]
        tokens: list[int] = []
        for ids in rows:
            tokens += ids
            if ids[-1:] != [end]:
                tokens.append(end)
        starts = range(0, len(tokens) - size + 1, size)
        blocks = [tokens[start : start + size] for start in starts]
        return dict.fromkeys(columns, blocks)

    blocks = splits.map(
        cut,
        batched=True,
        batch_size=JOINED,
        remove_columns="text",
        desc=f"cutting blocks of {size} tokens",
    )
    for name, split in blocks:
        if len(split) == 0:
            raise InputError(
                f"the {name} split has fewer tokens than one block of {size}; give more text or a shorter block"
            )
    return blocks


def fit_max_length(data: Any, model: PreTrainedModel, option: str = "max_length") -> None:
    """Lower the length of texts, an option of the data, to the positions that the model has."""
    positions = longest_text(model)
    if positions is not None and getattr(data, option) > positions:
        logger.warning("Texts are cut to %d tokens, which are the positions that the model has.", positions)
        setattr(data, option, positions)


@dataclass
class MaskingCollator:
    """Masks random tokens; the same batch always gets the same masks, so evaluations are comparable."""

    tokenizer: PreTrainedTokenizerBase
    mask_share: float = 0.15

    def __call__(self, examples: list[dict]) -> dict:
        masking = DataCollatorForLanguageModeling(self.tokenizer, mlm_probability=self.mask_share)
        contents = [str(example["input_ids"]).encode() for example in examples]
        masking.generator = batch_generator(contents)
        return masking(examples)
