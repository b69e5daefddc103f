"""Train, validation and test split in one form: input columns, and for classifiers integer labels and their names."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Image, Value, concatenate_datasets
from sklearn.model_selection import train_test_split

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.finetune.arguments import LabelledDataArguments, SourceArguments, UnlabelledDataArguments
from hf_bidir.finetune.data.checks import find_column, listed, unusable_rows, without_rows
from hf_bidir.finetune.data.sources import DIGITS, read_digits, read_hub, read_table

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Column:
    """A column that a task needs.

    Attributes:
        name: in the result; the option `--<name>_column` chooses another one of the data.
        guesses: its usual names in data.
        kind: the feature that it becomes; None keeps its own.
        read: reads a file that has it.
        unusable: the rows of a split without a usable entry in the column of this name.
    """

    name: str
    guesses: tuple[str, ...]
    kind: Value | Image | None
    read: Callable[[str], Dataset]
    unusable: Callable[[Dataset, str], list[int]]


def has_text(text: str | None) -> bool:
    """Whether there is more than blanks."""
    return bool(text and text.strip())


def blank_rows(split: Dataset, column: str) -> list[int]:
    """The rows without a text."""
    return [row for row, text in enumerate(split[column][:]) if not has_text(text)]


LABEL = Column("label", ("label", "labels"), None, read_table, blank_rows)


@dataclass
class Splits:
    """The examples of a run.

    Attributes:
        train, validation: data sets with an input column (`text` or `image`) and `label`, an index into
            `names`; or with `source` and `target`.
        test: the same, or None when there is no test data.
        names: the class names, by label index; empty for data without labels.
        notes: automatic decisions about the data and the run, in sentences.
        values: what stands in the data for each class, by label index; `names` unless --class_names renames them.
    """

    train: Dataset
    validation: Dataset
    test: Dataset | None
    names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[str, Dataset]]:
        """The pairs (name, data set) of the splits that exist."""
        yield "train", self.train
        yield "validation", self.validation
        if self.test is not None:
            yield "test", self.test

    def map(self, function: Callable, **options: Any) -> "Splits":
        """`Dataset.map` of every split."""
        mapped = {name: split.map(function, **options) for name, split in self}
        return replace(self, **mapped)


def raw_splits(data: SourceArguments, *columns: Column) -> dict[str, Dataset]:
    """The splits that `data` names, with these columns alone; files override a data set name.

    Raises:
        InputError: there is no training data, or something named does not exist, cannot be read or lacks a column.
    """
    files, source = data.files, data.dataset_name
    if "train" in files:
        raw = {}
        for name, paths in files.items():
            paths = [paths] if isinstance(paths, str) else paths
            tables = [columns[0].read(path) for path in paths]
            raw[name] = concatenate_datasets([selected(table, name, data, *columns) for table in tables])
        return raw
    if files or not source:
        raise InputError("expected training data: give --train_file, or --dataset_name without other files")
    hub = read_digits() if source == DIGITS else read_hub(source, data.dataset_config)
    return {name: selected(split, name, data, *columns) for name, split in hub.items()}


def selected(split: Dataset, name: str, data: SourceArguments, *columns: Column) -> Dataset:
    """The columns of a split under their names in the result, each of its kind. Raises InputError if one is missing."""
    renamed: dict[str, str] = {}
    for column in columns:
        original = find_column(split, name, data, column)
        if original in renamed:
            raise InputError(f"expected different columns for {renamed[original]} and {column.name}; got {original}")
        renamed[original] = column.name
    split = split.select_columns(list(renamed)).rename_columns(renamed)
    for column in columns:
        if column.kind is not None:
            with as_input_error(f"expected {column.name}s in that column of the {name} split: ", Exception):
                split = split.cast_column(column.name, column.kind)
    return with_label_texts(split) if LABEL in columns else split


def labelled_splits(raw: dict[str, Dataset], data: LabelledDataArguments, column: Column) -> Splits:
    """Check inputs and labels, and hold out a validation split if there is none.

    Args:
        raw: splits with the input column and `label` as text: "train", and "validation" and "test" if they exist.

    Raises:
        InputError: fewer than two classes, or rows without input or label, or whose label is unknown in the training
            split or too rare; the error names all rows of a split.
    """
    # in a user's own file -1 is an ordinary label
    notes = [] if data.train_file else _replace_hidden_test(raw)
    problems = unusable_rows(raw["train"], column, LABEL)
    labels = raw["train"]["label"][:]
    counts = Counter(label for row, label in enumerate(labels) if row not in problems)
    if "validation" not in raw:
        for row, label in enumerate(labels):
            if row not in problems and counts[label] == 1:
                problems[row] = "no other row of its class, so none can be held out for validation"
                del counts[label]
    values = _in_order(counts)
    names = data.class_names or values
    if len(values) < 2:
        raise InputError(f"expected at least two classes (of images: one folder per class); got {values}")
    if not len(values) == len(names) == len(set(names)):
        raise InputError(f"expected {len(values)} different class names, for the labels {listed(values)}; got {names}")
    for name, split in raw.items():
        if name != "train":
            problems = unusable_rows(split, column, LABEL)
        raw[name] = _encoded(split, name, problems, data, values, notes)
    return finished(raw, notes, data, names, values)


def labelled_split(
    split: Dataset, name: str, data: LabelledDataArguments, column: Column, orders: list[list[str]]
) -> Dataset:
    """A split whose labels are classes of a model, in the first of these orders that has one; errors as above."""
    split = with_label_texts(split)
    present = set(split["label"][:])
    values = next((order for order in orders if present.intersection(order)), orders[0])
    problems = unusable_rows(split, column, LABEL)
    notes: list[str] = []
    split = _encoded(split, name, problems, data, values, notes)
    for note in notes:
        logger.warning(note)
    return split


def unlabelled_splits(raw: dict[str, Dataset], data: SourceArguments, *columns: Column) -> Splits:
    """Check the columns of splits without classes, and hold out a validation split if there is none."""
    notes: list[str] = []
    for name, split in raw.items():
        problems = unusable_rows(split, *columns)
        raw[name] = without_rows(split, name, problems, data, notes)
    return finished(raw, notes, data)


def finished(
    raw: dict[str, Dataset],
    notes: list[str],
    data: SourceArguments,
    names: Sequence[str] = (),
    values: Sequence[str] = (),
) -> Splits:
    """The splits; rows of the training split are held out if there is no other validation split.

    Args:
        notes: on the data so far.
        names, values: of the classes, if there are any.

    Raises:
        InputError: an empty split, or too few rows to hold some out.
    """
    raw = dict(raw)
    for name, split in raw.items():
        if len(split) == 0:
            raise InputError(f"the {name} split has no row that can be used")
    if "validation" not in raw:
        classes = raw["train"]["label"][:] if names else None
        notes.append(_hold_out(raw, data, classes))
    most = data.max_train_samples
    if most and most < len(raw["train"]):
        raw["train"] = raw["train"].shuffle(seed=data.split_seed).select(range(most))
        notes.append(f"Trained on a random sample of {most} rows only.")
    for note in notes:
        logger.warning(note)
    return Splits(
        train=raw["train"],
        validation=raw["validation"],
        test=raw.get("test"),
        names=list(names),
        notes=notes,
        values=list(values),
    )


def without_test(raw: dict[str, Dataset]) -> dict[str, Dataset]:
    """Train and validation; the test split is used as validation where there is no other."""
    test = raw.pop("test", None)
    if test is not None:
        raw.setdefault("validation", test)
    return raw


def sampled(splits: Splits, data: UnlabelledDataArguments) -> Splits:
    """The splits with at most `max_eval_samples` rows of validation, and a note on the sample."""
    most = data.max_eval_samples
    if most is not None and len(splits.validation) > most:
        splits.validation = splits.validation.shuffle(seed=data.split_seed).select(range(most))
        note = f"Evaluated on a random sample of {most}."
        logger.warning(note)
        splits.notes.append(note)
    return splits


def with_label_texts(split: Dataset) -> Dataset:
    """The split with its labels as texts, the same for 1 and 1.0, and None for none."""
    feature = split.features["label"]
    labels: list[str | None] = []
    for value in split["label"][:]:
        if isinstance(feature, ClassLabel) and value is not None:
            value = feature.int2str(value) if value >= 0 else None  # -1 stands for none
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or value != value:  # NaN, as pandas writes none
            labels.append(None)
        elif isinstance(value, str | int):
            labels.append(str(value))
        else:
            raise InputError(f"expected integers or names as labels; got {value!r}")
    return split.remove_columns("label").add_column("label", labels, feature=Value("string"))


def _in_order(labels: Collection[str]) -> list[str]:
    """Integers by size, other labels by letters."""
    try:
        return sorted(labels, key=int)
    except ValueError:
        return sorted(labels)


def _encoded(
    split: Dataset,
    name: str,
    problems: dict[int, str],
    data: LabelledDataArguments,
    values: list[str],
    notes: list[str],
) -> Dataset:
    """The rows without problems, with the indices of `values` as labels; another label is a problem."""
    labels, known = split["label"][:], set(values)
    unknown = [row for row, label in enumerate(labels) if label not in known and row not in problems]
    different = sorted({labels[row] for row in unknown})
    reason = f"unknown labels {listed(different)}; known are {listed(values)}"
    problems |= dict.fromkeys(unknown, reason)
    usable = without_rows(split, name, problems, data, notes)
    return usable.cast_column("label", ClassLabel(names=values))


def _replace_hidden_test(raw: dict[str, Dataset]) -> list[str]:
    """Replace a test split without labels (GLUE hides them as -1) by the validation split; return notes."""
    if "test" not in raw or set(raw["test"]["label"][:]) - {None, "-1"}:
        return []
    del raw["test"]
    if "validation" in raw:
        raw["test"] = raw.pop("validation")
    return ["The data set hides its test labels; its validation split is the test split."]


def _hold_out(raw: dict[str, Dataset], data: SourceArguments, classes: list[int] | None) -> str:
    """Move rows of the training split, in their order, into a validation split; return a note."""
    train = raw["train"]
    share, seed = data.validation_share, data.split_seed
    with as_input_error("cannot hold out rows; give --validation_file or another --validation_share: "):
        if classes:
            rows = np.arange(len(train))
            rest, held_out = train_test_split(rows, test_size=share, random_state=seed, stratify=classes)
        else:
            rows = Dataset.from_dict({"row": range(len(train))})
            parts = rows.train_test_split(share, seed=seed)
            rest, held_out = parts["train"]["row"], parts["test"]["row"]
    raw["train"] = train.select(sorted(rest))
    raw["validation"] = train.select(sorted(held_out))
    return f"No validation split was given: {len(held_out)} of {len(train)} training rows were held out."
