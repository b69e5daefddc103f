"""Data without labels: texts cut into snippets, and images."""

from collections.abc import Callable
from functools import partial
from typing import Any

from datasets import Dataset, Image, Value, concatenate_datasets
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.kinds import text_limit
from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.images import image_mode, open_image
from hf_bidir.finetune.data.arguments import DistillationDataArguments, UnlabelledDataArguments, UnlabelledTextArguments
from hf_bidir.finetune.data.image_data import IMAGE_COLUMNS, unreadable_images
from hf_bidir.finetune.data.image_files import read_images
from hf_bidir.finetune.data.sources import read_hub, read_table
from hf_bidir.finetune.data.splits import Splits, find_column, unlabelled_splits
from hf_bidir.finetune.data.text_data import TEXT_COLUMNS


def read_snippets(data: UnlabelledTextArguments, tokenizer: PreTrainedTokenizerBase) -> Splits:
    """Texts, cut into snippets of at most `max_length` tokens, as `input_ids` and `attention_mask`.

    Raises:
        InputError: no data, no such file or column, or nothing but empty texts.
    """
    if not tokenizer.is_fast:
        raise InputError(
            f"expected a fast tokenizer, which can cut a text into snippets; got {type(tokenizer).__name__}"
        )
    # a text gives at least one snippet, so more texts than this need not be cut
    splits = sampled_evaluation(
        unlabelled_columns(data, read_table, data.text_column, TEXT_COLUMNS, Value("string")), data
    )

    def cut(batch: dict[str, list]) -> dict[str, list]:
        texts = [text for text in batch["text"] if isinstance(text, str) and text.strip()]
        if not texts:
            return {"input_ids": [], "attention_mask": []}
        windows = tokenizer(
            texts,
            truncation=True,
            max_length=data.max_length,
            return_overflowing_tokens=True,
            return_token_type_ids=False,
        )
        return {name: windows[name] for name in ("input_ids", "attention_mask")}

    splits = splits.map(lambda split: split.map(cut, batched=True, remove_columns="text", desc="cutting snippets"))
    for name, split in splits:
        if len(split) == 0:
            raise InputError(f"the {name} split has no text; expected at least one row that is not empty")
    return sampled_evaluation(splits, data)


def read_unlabelled_images(data: DistillationDataArguments) -> Splits:
    """Images, decoded when a row is read.

    Raises:
        InputError: no data, no such file or column, or no images in it.
    """
    read_file = partial(read_images, labelled=False)
    splits = sampled_evaluation(unlabelled_columns(data, read_file, data.image_column, IMAGE_COLUMNS, Image()), data)
    if data.check_images:
        for name, split in splits:
            for row, problem in unreadable_images(name, split):
                raise InputError(
                    f"no readable image in row {row} of the {name} split as it is used (from 0): {problem}"
                )
    return splits


def unlabelled_columns(
    data: UnlabelledDataArguments,
    read_file: Callable[[str], Dataset],
    column: str | None,
    guesses: tuple[str, ...],
    kind: Value | Image,
) -> Splits:
    """Train and validation, each with one column of this kind under the first of the guessed names."""
    files = _raw(data, read_file)
    raw = {name: _only(name, parts, column, guesses, kind) for name, parts in files.items() if name != "test"}
    return unlabelled_splits(raw, data.validation_share, data.split_seed, data.max_train_samples)


def unlabelled_batches(
    model: PreTrainedModel, processor: Any, file: str, column: str | None, examples: int, batch_size: int
) -> list[dict[str, Tensor]]:
    """Model inputs of a sample of texts or images, without labels.

    Args:
        column: of the texts or images; by default detected.
        examples: rows to sample, with a fixed seed.

    Raises:
        InputError: no such file or column, or no text in it.
    """
    images = model.main_input_name == "pixel_values"
    rows = read_images(file, labelled=False) if images else read_table(file)
    guesses = IMAGE_COLUMNS if images else TEXT_COLUMNS
    found = find_column(file, rows, column, guesses, guesses[0])
    rows = rows.shuffle(seed=0).select(range(min(examples, len(rows)))).select_columns([found])
    if images:
        with as_input_error(f"expected images in the column {found} of {file}: ", Exception):
            rows = rows.cast_column(found, Image())
        pictures = [open_image(row[found], image_mode(model.config)) for row in rows]
        parts = [pictures[start : start + batch_size] for start in range(0, len(pictures), batch_size)]
        return [{"pixel_values": processor(part, return_tensors="pt")["pixel_values"]} for part in parts]
    texts = [row[found] for row in rows if isinstance(row[found], str) and row[found].strip()]
    if not texts:
        raise InputError(f"expected texts in the column {found} of {file}; all rows are empty")
    padded = processor.pad_token_id is not None
    options = {
        "padding": padded,
        "truncation": True,
        "max_length": text_limit(model, processor),
        "return_tensors": "pt",
    }
    batch_size = batch_size if padded else 1
    return [dict(processor(texts[start : start + batch_size], **options)) for start in range(0, len(texts), batch_size)]


def _raw(data: UnlabelledDataArguments, read_file: Callable[[str], Dataset]) -> dict[str, list[Dataset]]:
    if data.train_file:
        files = {"train": data.train_file, "validation": data.validation_file or []}
        return {name: [read_file(path) for path in paths] for name, paths in files.items() if paths}
    if data.validation_file:
        raise InputError("expected --train_file beside --validation_file")
    if not data.dataset_name:
        raise InputError("expected training data: give --train_file or --dataset_name; see --help")
    found = read_hub(data.dataset_name, data.dataset_config)
    if "validation" not in found and "test" in found:  # nothing is chosen by it but, if asked for, a checkpoint
        found["validation"] = found.pop("test")
    return {name: [split] for name, split in found.items()}


def _only(
    name: str, parts: list[Dataset], column: str | None, guesses: tuple[str, ...], kind: Value | Image
) -> Dataset:
    """The input column of all parts, one after the other."""
    found = []
    for part in parts:
        old = find_column(f"the {name} split", part, column, guesses, guesses[0])
        part = part.select_columns([old])
        part = part if old == guesses[0] else part.rename_column(old, guesses[0])
        with as_input_error(f"expected {guesses[0]}s in the column {old} of the {name} split: ", Exception):
            found.append(part.cast_column(guesses[0], kind))
    return concatenate_datasets(found)


def sampled_evaluation(splits: Splits, data: UnlabelledDataArguments) -> Splits:
    if data.max_eval_samples is not None and len(splits.validation) > data.max_eval_samples:
        splits.validation = splits.validation.shuffle(seed=data.split_seed).select(range(data.max_eval_samples))
        note = f"Evaluated on a random sample of {data.max_eval_samples}."
        splits.notes += [note] if note not in splits.notes else []
    return splits
