"""Pairs of a source and a target sequence: read, check, tokenize."""

from datasets import Dataset, Value
from transformers import PreTrainedTokenizerBase

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.arguments import PairDataArguments
from hf_bidir.finetune.data.problems import Problems, quoted
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.data.splits import Splits, named_columns, raw_splits, unlabelled_splits


def read_pairs(data: PairDataArguments) -> Splits:
    """Read the splits with the columns `source` and `target`.

    Raises:
        InputError: the data cannot be used: no such file or column, an empty split, a row without a text.
    """
    raw = raw_splits(data, read_table)
    problems = Problems(raw, data.files)
    raw = {name: _select(name, split, data, problems) for name, split in raw.items()}
    notes = problems.settle(data.drop_bad_rows)
    raw = {name: split.select(problems.usable(name)) for name, split in raw.items()}
    notes += [] if "test" in raw else ["There was no test split, so there are no test numbers."]
    return unlabelled_splits(raw, data.validation_share, data.split_seed, data.max_train_samples, notes)


def _select(name: str, split: Dataset, data: PairDataArguments, problems: Problems) -> Dataset:
    """Only the source and target columns; integers become text."""
    given = {"source": data.source_column, "target": data.target_column}
    split = named_columns(name, split, {role: (column, (role,)) for role, column in given.items()}, problems)
    for role in split.column_names:
        kind = split.features[role]
        if isinstance(kind, Value) and kind.dtype.startswith(("int", "uint")):
            split = split.cast_column(role, Value("string"))
        problems.texts(name, split, role)
    return split


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

    def map_split(split: Dataset) -> Dataset:
        return split.map(to_ids, batched=True, remove_columns=["source", "target"], desc="tokenizing")

    tokenized = splits.map(map_split)
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
