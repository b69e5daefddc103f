"""Texts with classes, and pairs of texts: read, check, tokenize."""

import logging
from collections.abc import Collection
from itertools import chain
from typing import Any

from datasets import Dataset, Value
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.kinds import longest_text
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import PairDataArguments, TextDataArguments
from hf_bidir.finetune.data.overlap import Repeats, find_repeats
from hf_bidir.finetune.data.problems import quoted
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.data.splits import (
    Splits,
    check_texts,
    labelled_split,
    labelled_splits,
    raw_splits,
    select_columns,
    unlabelled_splits,
)

logger = logging.getLogger(__name__)

TEXT_COLUMNS = ("text", "sentence")
MOST_CHARACTERS = 20_000_000  # searched for repeated texts without --remove_repeated, which takes seconds


def read_texts(data: TextDataArguments) -> Splits:
    """Read the splits with the columns `text` and `label`; repeated texts are noted, or removed.

    Raises:
        InputError: the data cannot be used; see `labelled_splits`.
    """
    splits = labelled_splits(raw_splits(data, read_table), data, data.text_column, TEXT_COLUMNS)
    texts = {name: split["text"][:] for name, split in splits}
    if not data.remove_repeated and sum(map(len, chain(*texts.values()))) > MOST_CHARACTERS:
        return splits
    for name, repeats in find_repeats(texts).items():
        if not (count := sum(repeats.removed.values())):
            continue
        why = ", ".join(f"{reason}: {number}" for reason, number in repeats.removed.items() if number)
        done = "were removed" if data.remove_repeated else "were kept; --remove_repeated removes them"
        splits.note(
            f"{count} of {len(texts[name])} {name} texts repeat a text of an earlier split ({why}). They {done}."
        )
        if data.remove_repeated:
            setattr(splits, name, without_repeats(name, getattr(splits, name), repeats))
    return splits


def without_repeats(name: str, split: Dataset, repeats: Repeats) -> Dataset:
    """The rows of a split that repeat no text of an earlier split. Raises InputError if there are none."""
    if not repeats.kept:
        raise InputError(f"every text of the {name} split repeats a text of an earlier split; none would be left")
    return split.select(repeats.kept)


def read_text_split(
    file: str, data: TextDataArguments, names: list[str], name: str, values: list[str] | None = None
) -> Dataset:
    """Read one split alone, `text` and `label`, for a model with the classes `names`; see `labelled_split`."""
    return labelled_split(read_table(file), data, data.text_column, TEXT_COLUMNS, names, name, values, file)


def tokenize(splits: Splits, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Splits:
    """The splits with `input_ids` and `attention_mask` in place of `text`, cut to `max_length` tokens."""
    return splits.map(lambda split: tokenize_split(split, tokenizer, max_length))


def tokenize_split(split: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Tokenize one split as `tokenize` does."""

    def to_ids(batch: dict[str, list]) -> dict[str, list]:
        return tokenizer(batch["text"], truncation=True, max_length=max_length, return_token_type_ids=False)

    return split.map(to_ids, batched=True, remove_columns="text", desc="tokenizing")


def read_pairs(data: PairDataArguments) -> Splits:
    """Read the splits with the columns `source` and `target`; integers become text.

    Raises:
        InputError: the data cannot be used: no such file or column, an empty split, a row without a text.
    """
    columns: tuple[tuple[str, str | None], ...] = (("source", data.source_column), ("target", data.target_column))
    wanted: dict[str, tuple[str | None, tuple[str, ...]]] = {role: (column, (role,)) for role, column in columns}
    raw, problems = select_columns(raw_splits(data, read_table), data.files, wanted)
    for name, split in raw.items():
        for role in split.column_names:
            kind = split.features[role]
            if isinstance(kind, Value) and kind.dtype.startswith(("int", "uint")):
                raw[name] = raw[name].cast_column(role, Value("string"))
            check_texts(name, raw[name], role, problems)
    notes = problems.settle(data.drop_bad_rows)
    notes += [] if "test" in raw else ["There was no test split, so there are no test numbers."]
    return unlabelled_splits({name: split.select(problems.usable(name)) for name, split in raw.items()}, data, notes)


def tokenize_pairs(
    splits: Splits, tokenizer: PreTrainedTokenizerBase, max_length: int, max_target_length: int, prefix: str = ""
) -> Splits:
    """The splits with `input_ids`, of at most `max_length` tokens, `attention_mask` and `labels`.

    Args:
        prefix: prepended to every source.

    Raises:
        InputError: a target has more than `max_target_length` tokens: truncating it would change the target.
    """

    def to_ids(batch: dict[str, list]) -> dict[str, list]:
        sources = [prefix + source for source in batch["source"]]
        encoded = tokenizer(sources, truncation=True, max_length=max_length, return_token_type_ids=False)
        return {**encoded, "labels": tokenizer(text_target=batch["target"], verbose=False)["input_ids"]}

    tokenized = splits.map(
        lambda split: split.map(to_ids, batched=True, remove_columns=["source", "target"], desc="tokenizing")
    )
    for name, split in tokenized:
        lengths = list(map(len, split["labels"]))
        if (longest := max(lengths)) > max_target_length:
            target = getattr(splits, name)[lengths.index(longest)]["target"]
            raise InputError(
                f"expected targets of at most {max_target_length} tokens (--max_target_length); in the {name} split "
                f"{sum(length > max_target_length for length in lengths)} are longer, at most {longest}: "
                f"{quoted([target])}"
            )
    return tokenized


def fit_max_length(
    data: Any, typed: Collection[str], model: PreTrainedModel, source: str | None, option: str = "max_length"
) -> None:
    """Lower the default length of texts to the positions that the model has; check a length that the user typed.

    Raises:
        InputError: the model, read from `source`, has fewer positions.
    """
    positions, length = longest_text(model), getattr(data, option)
    if option not in typed and positions is not None and positions < length:
        logger.warning(f"Texts are cut to {positions} tokens, the positions that {source or 'the model'} has.")
        setattr(data, option, length := positions)
    if length <= 2 or (positions is not None and length > positions):
        most = f" and at most {positions}, the positions that {source or 'the model'} has" if positions else ""
        fitting = f"; pass --{option} {positions}" if positions else ""
        raise InputError(f"expected {option} to be above 2{most}; got {length}{fitting}")
