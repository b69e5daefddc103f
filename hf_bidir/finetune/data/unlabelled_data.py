"""Data without labels: texts cut into snippets, texts joined and cut into blocks, and images."""

from collections.abc import Callable
from functools import partial
from itertools import chain

from datasets import Dataset, Image, Value
from transformers import PreTrainedTokenizerBase

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.finetune.arguments import (
    BlockArguments,
    DistillationDataArguments,
    UnlabelledDataArguments,
    UnlabelledTextArguments,
)
from hf_bidir.finetune.data.image_data import IMAGE_COLUMNS, unreadable_images
from hf_bidir.finetune.data.image_files import read_images
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.data.splits import Splits, find_column, raw_splits, unlabelled_splits
from hf_bidir.finetune.data.text_data import TEXT_COLUMNS

JOINED = 10_000  # texts joined at once
SHORT_TEXT = 8  # tokens; a text that is to be evaluated is assumed to have as many


def read_snippets(data: UnlabelledTextArguments, tokenizer: PreTrainedTokenizerBase) -> Splits:
    """Texts, cut into snippets of at most `max_length` tokens, as `input_ids` and `attention_mask`.

    Raises:
        InputError: no data, no such file or column, or nothing but empty texts.
    """
    if not tokenizer.is_fast:
        raise InputError(
            f"expected a fast tokenizer, which can cut a text into snippets; got {type(tokenizer).__name__}"
        )

    def cut(batch: dict[str, list]) -> dict[str, list]:
        texts = [text for text in batch["text"] if _has_text(text)]
        if not texts:
            return {"input_ids": [], "attention_mask": []}
        options = {"return_overflowing_tokens": True, "return_token_type_ids": False}
        windows = tokenizer(texts, truncation=True, max_length=data.max_length, **options)
        return {name: windows[name] for name in ("input_ids", "attention_mask")}

    # a text gives at least one snippet, so more texts than this need not be cut
    splits = _sampled(_columns(data, read_table, data.text_column, TEXT_COLUMNS, Value("string")), data)
    snippets = splits.map(lambda split: split.map(cut, batched=True, remove_columns="text", desc="cutting snippets"))
    return _sampled(_with_text(snippets), data)


def read_blocks(data: UnlabelledTextArguments, tokenizer: PreTrainedTokenizerBase) -> Splits:
    """Texts, each followed by the end token, joined and cut into blocks of `max_length` tokens, as `input_ids`.

    The last block of each `JOINED` texts can be shorter.

    Raises:
        InputError: no data, no such file or column, or nothing but empty texts.
    """
    documents = _documents(data, read_table)
    if data.max_eval_samples is not None:  # texts beyond those that fill the evaluated blocks need not be cut
        enough = data.max_eval_samples * max(data.max_length // SHORT_TEXT, 1)
        documents = _sampled(documents, data, enough)
    return _sampled(_blocks(documents, tokenizer, data.max_length), data)


def read_documents(data: BlockArguments) -> Splits:
    """Read the splits with the column `text`, without blank rows.

    Raises:
        InputError: no data, no such file or column, or nothing but empty texts.
    """
    return _documents(data, partial(read_table, sample_by=data.sample_by))


def _documents(data: UnlabelledDataArguments, read_file: Callable[[str], Dataset]) -> Splits:
    """The splits with the column `text`, without blank rows; `read_file` reads a file."""
    splits = _columns(data, read_file, data.text_column, TEXT_COLUMNS, Value("string"))
    described = {"input_columns": "text", "desc": "looking for empty texts"}
    return _with_text(splits.map(lambda split: split.filter(_has_text, **described)))


def cut_into_blocks(splits: Splits, tokenizer: PreTrainedTokenizerBase, data: BlockArguments) -> Splits:
    """Blocks of `block_size` tokens, `input_ids` and equal `labels`; each text ends with the end token.

    Raises:
        InputError: the tokenizer has no end token, or a split has fewer tokens than a block.
    """
    if tokenizer.eos_token_id is None:
        raise InputError("expected a tokenizer with a token that ends a text (eos_token), which parts joined texts")
    size = data.block_size
    blocks = _blocks(splits, tokenizer, size, ("input_ids", "labels"), whole=True)
    for name, split in blocks:
        if len(split) == 0:
            count = len(_joined(tokenizer, getattr(splits, name)["text"][:]))
            raise InputError(
                f"the {name} split has {count} tokens, fewer than one block of {size}; give more text, or "
                f"train with --block_size {count} or less"
            )
    return _sampled(blocks, data)


def _blocks(
    splits: Splits,
    tokenizer: PreTrainedTokenizerBase,
    size: int,
    columns: tuple[str, ...] = ("input_ids",),
    whole: bool = False,
) -> Splits:
    """The texts joined and cut into blocks of `size` tokens, the same in all columns.

    `whole` drops the last block of each `JOINED` texts if it is shorter.
    """

    def cut(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        tokens = _joined(tokenizer, batch["text"])
        end = len(tokens) - size + 1 if whole else len(tokens)
        blocks = [tokens[start : start + size] for start in range(0, end, size)]
        return dict.fromkeys(columns, blocks)

    options = {"batched": True, "batch_size": JOINED, "remove_columns": "text"}
    return splits.map(lambda split: split.map(cut, desc=f"cutting blocks of {size} tokens", **options))


def _joined(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[int]:
    """The tokens of all texts, each with the end token after it."""
    end, rows = tokenizer.eos_token_id, tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
    return [*chain.from_iterable(ids if ids and ids[-1] == end else [*ids, end] for ids in rows)]


def read_unlabelled_images(data: DistillationDataArguments) -> Splits:
    """Images, decoded when a row is read.

    Raises:
        InputError: no data, no such file or column, or no images in it.
    """
    read_file = partial(read_images, labelled=False)
    splits = _sampled(_columns(data, read_file, data.image_column, IMAGE_COLUMNS, Image()), data)
    for name, split in splits if data.check_images else ():
        for row, problem in unreadable_images(name, split):
            raise InputError(f"no readable image in row {row} of the {name} split as it is used (from 0): {problem}")
    return splits


def _has_text(text: str | None) -> bool:
    return bool(text and text.strip())


def _with_text(splits: Splits) -> Splits:
    for name, split in splits:
        if len(split) == 0:
            raise InputError(f"the {name} split has no text; expected at least one row that is not empty")
    return splits


def _columns(
    data: UnlabelledDataArguments,
    read_file: Callable[[str], Dataset],
    column: str | None,
    guesses: tuple[str, ...],
    kind: Value | Image,
) -> Splits:
    """Train and validation, each with one column of this kind under the first of the guessed names."""
    raw = raw_splits(data, read_file, lambda name, part: _one_column(f"the {name} split", part, column, guesses, kind))
    if "validation" not in raw and "test" in raw:  # by default it only measures: the last checkpoint is kept
        raw["validation"] = raw["test"]
    raw.pop("test", None)
    return unlabelled_splits(raw, data)


def _one_column(
    where: str, part: Dataset, column: str | None, guesses: tuple[str, ...], kind: Value | Image
) -> Dataset:
    role = guesses[0]
    old = find_column(where, part, column, guesses, role)
    part = part.select_columns([old])
    with as_input_error(f"expected {role}s in the column {old} of {where}: ", Exception):
        return (part if old == role else part.rename_column(old, role)).cast_column(role, kind)


def _sampled(splits: Splits, data: UnlabelledDataArguments, rows: int | None = None) -> Splits:
    """The splits with at most this many rows of validation, by default `max_eval_samples`, and a note on the sample."""
    rows = rows or data.max_eval_samples
    if rows is not None and len(splits.validation) > rows:
        splits.validation = splits.validation.shuffle(seed=data.split_seed).select(range(rows))
        note = f"Evaluated on a random sample of {data.max_eval_samples}."
        splits.notes += [note] if note not in splits.notes else []
    return splits
