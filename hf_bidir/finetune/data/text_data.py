"""Text classification data: read, check, tokenize."""

import logging
from collections.abc import Collection
from itertools import chain
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.kinds import longest_text
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.arguments import TextDataArguments
from hf_bidir.finetune.data.overlap import Repeats, find_repeats
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.data.splits import Splits, labelled_split, labelled_splits, raw_splits

logger = logging.getLogger(__name__)

TEXT_COLUMNS = ("text", "sentence")
MOST_CHARACTERS = 20_000_000  # searched for repeated texts without --remove_repeated, which takes seconds


def read_texts(data: TextDataArguments) -> Splits:
    """Read the splits with the columns `text` and `label`.

    Raises:
        InputError: the data cannot be used; see `labelled_splits`.
    """
    splits = labelled_splits(raw_splits(data, read_table), data, data.text_column, TEXT_COLUMNS)
    texts = {name: split["text"][:] for name, split in splits}
    if data.remove_repeated or sum(map(len, chain(*texts.values()))) <= MOST_CHARACTERS:
        _note_repeats(splits, texts, data.remove_repeated)
    return splits


def _note_repeats(splits: Splits, texts: dict[str, list[str]], remove: bool) -> None:
    """Count the evaluation texts that repeat a text of an earlier split in a note, and remove them if asked to."""
    for name, repeats in find_repeats(texts).items():
        if not (count := sum(repeats.removed.values())):
            continue
        why = ", ".join(f"{reason}: {number}" for reason, number in repeats.removed.items() if number)
        done = "were removed" if remove else "were kept; --remove_repeated removes them"
        note = f"{count} of {len(texts[name])} {name} texts repeat a text of an earlier split ({why}). They {done}."
        logger.warning(note)
        splits.notes.append(note)
        if remove:
            setattr(splits, name, without_repeats(name, getattr(splits, name), repeats))


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


def fit_max_length(
    data: Any, given: Collection[str], model: PreTrainedModel, source: str | None, option: str = "max_length"
) -> None:
    """Lower the default length of texts to the positions that the model has; check a length that the user gave."""
    positions = longest_text(model)
    if option not in given and positions is not None and positions < getattr(data, option):
        logger.warning("Texts are cut to %d tokens, the positions that %s has.", positions, source or "the model")
        setattr(data, option, positions)
    check_max_length(getattr(data, option), model, source, option)


def check_max_length(max_length: int, model: PreTrainedModel, source: str | None, option: str = "max_length") -> None:
    """Raise InputError where the model, read from `source`, has fewer positions than `max_length`, the `option`."""
    positions = longest_text(model)
    if max_length <= 2 or (positions is not None and max_length > positions):
        most = f" and at most {positions}, the positions that {source or 'the model'} has" if positions else ""
        fitting = f"; pass --{option} {positions}" if positions else ""
        raise InputError(f"expected {option} to be above 2{most}; got {max_length}{fitting}")
