"""Blocks of equal length for causal language models: texts, each followed by an end token, joined and cut."""

from functools import partial
from itertools import chain

from datasets import Value
from transformers import PreTrainedTokenizerBase

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.arguments import BlockArguments
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.data.text_data import TEXT_COLUMNS
from hf_bidir.finetune.data.unlabelled_data import sampled_evaluation, unlabelled_columns

JOINED = 10_000  # texts joined at once; the remainder, shorter than a block, is dropped


def read_documents(data: BlockArguments) -> Splits:
    """Read the splits with the column `text`, without blank rows.

    Raises:
        InputError: no data, no such file or column, or nothing but empty texts.
    """
    read_file = partial(read_table, sample_by=data.sample_by)
    splits = unlabelled_columns(data, read_file, data.text_column, TEXT_COLUMNS, Value("string"))
    splits = splits.map(lambda split: split.filter(_has_text, input_columns="text", desc="looking for empty texts"))
    for name, split in splits:
        if len(split) == 0:
            raise InputError(f"the {name} split has no text; expected at least one row that is not empty")
    return splits


def _has_text(text: str | None) -> bool:
    return bool(text and text.strip())


def cut_into_blocks(splits: Splits, tokenizer: PreTrainedTokenizerBase, data: BlockArguments) -> Splits:
    """Blocks of `block_size` tokens, `input_ids` and equal `labels`; each text ends with the end token.

    Raises:
        InputError: the tokenizer has no end token, or a split has fewer tokens than a block.
    """
    if tokenizer.eos_token_id is None:
        raise InputError("expected a tokenizer with a token that ends a text (eos_token), which parts joined texts")
    blocks = splits.map(
        lambda split: split.map(
            partial(_blocks, tokenizer, data.block_size),
            batched=True,
            batch_size=JOINED,
            remove_columns="text",
            desc=f"cutting blocks of {data.block_size} tokens",
        )
    )
    for name, split in blocks:
        if len(split) == 0:
            tokens = sum(map(len, _ended(tokenizer, getattr(splits, name)["text"][:])))
            raise InputError(
                f"the {name} split has {tokens} tokens, fewer than one block of {data.block_size}; give more text, or "
                f"pass --block_size {tokens} or less"
            )
    return sampled_evaluation(blocks, data)


def _blocks(tokenizer: PreTrainedTokenizerBase, size: int, batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
    tokens = list(chain.from_iterable(_ended(tokenizer, batch["text"])))
    blocks = [tokens[start : start + size] for start in range(0, len(tokens) - size + 1, size)]
    return {"input_ids": blocks, "labels": blocks}


def _ended(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    end = tokenizer.eos_token_id
    rows = tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
    return [ids if ids and ids[-1] == end else [*ids, end] for ids in rows]
