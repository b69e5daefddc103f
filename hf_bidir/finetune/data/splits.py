"""Train, validation and test split in one form: input columns, and for classifiers integer labels and their names."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Image, Value, concatenate_datasets
from sklearn.model_selection import train_test_split

from hf_bidir.common.errors import InputError, as_input_error

from ..arguments import LabelledDataArguments, SourceArguments, UnlabelledDataArguments
from .checks import find_column, listed, note, unusable_rows, without_rows
from .sources import DIGITS, read_digits, read_hub, read_table

SEED = 0  # of held-out rows and samples, whatever the seed of training
STRING = Value("string")
FLOATS = (Value("float32"), Value("float64"))


def has_text(text: str | None) -> bool:
    """Whether there is more than blanks."""
    return bool(text and text.strip())


def blank_rows(split: Dataset, column: str) -> list[int]:
    """The rows without a text."""
    return [row for row, text in enumerate(split[column][:]) if not has_text(text)]


@dataclass(frozen=True)
class Column:
    """A column that a task needs.

    Attributes:
        name: in the result; the option `--<name>_column` chooses another one of the data.
        guesses: its usual names in data.
        kind: the feature that it becomes.
        read: reads a file that has it.
        unusable: the rows of a split without a usable entry in the column of this name.
    """

    name: str
    guesses: tuple[str, ...]
    kind: Value | Image = field(default_factory=lambda: STRING)
    read: Callable[[str], Dataset] = read_table
    unusable: Callable[[Dataset, str], list[int]] = blank_rows


LABEL = Column("label", ("label", "labels"))


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
    test: Dataset | None = None
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
            tables = [columns[0].read(path) for path in paths]
            raw[name] = concatenate_datasets([selected(table, name, data, *columns) for table in tables])
        return raw
    if files or not source:
        raise InputError("expected training data: give --train_file, or --dataset_name without other files")
    hub = read_digits() if source == DIGITS else read_hub(source, data.dataset_config)
    return {name: selected(split, name, data, *columns) for name, split in hub.items()}


def selected(split: Dataset, name: str, data: SourceArguments, *columns: Column) -> Dataset:
    """The columns of a split under their names in the result, each of its kind. Raises InputError if one is missing."""
    renamed = {find_column(split, name, data, column): column.name for column in columns}
    split = split.select_columns(list(renamed)).rename_columns(renamed)
    for column in columns:
        with as_input_error(f"expected {column.name}s in that column of the {name} split: ", Exception):
            if column is LABEL:
                split = with_class_names(split)
            split = split.cast_column(column.name, column.kind)
    return split


def labelled_splits(raw: dict[str, Dataset], data: LabelledDataArguments, column: Column) -> Splits:
    """Check inputs and labels, and hold out a validation split if there is none.

    Args:
        raw: splits with the input column and `label` as text: "train", and "validation" and "test" if they exist.

    Raises:
        InputError: fewer than two classes, or rows without input or label, or whose label is unknown in the training
            split, all of which the error names; or a class with too few rows to hold some out.
    """
    notes: list[str] = []
    if not data.train_file:  # in a user's own file -1 is an ordinary label
        _replace_hidden_test(raw, notes)
    problems = {name: unusable_rows(split, column, LABEL) for name, split in raw.items()}
    labels = enumerate(raw["train"]["label"][:])
    values = _in_order({label for row, label in labels if row not in problems["train"]})
    names = data.class_names or values
    if len(values) < 2:
        raise InputError(f"expected at least two classes (of images: one folder per class); got {values}")
    if not len(values) == len(names) == len(set(names)):
        raise InputError(f"expected {len(values)} different class names, for the labels {listed(values)}; got {names}")
    for name, split in raw.items():
        raw[name] = _encoded(split, name, problems[name], data, values, notes)
    return replace(finished(raw, data, notes), names=names, values=values)


def labelled_split(
    split: Dataset,
    name: str,
    data: LabelledDataArguments,
    column: Column,
    orders: list[list[str]],
) -> Dataset:
    """A split whose labels are classes of a model, in the first of these orders that has one; errors as above."""
    split = with_class_names(split)
    present = set(split["label"][:])
    values = next((order for order in orders if present.intersection(order)), orders[0])
    problems = unusable_rows(split, column, LABEL)
    return _encoded(split, name, problems, data, values, notes=[])


def unlabelled_splits(raw: dict[str, Dataset], data: SourceArguments, *columns: Column) -> Splits:
    """Check the columns of splits without classes, and hold out a validation split if there is none."""
    notes: list[str] = []
    for name, split in raw.items():
        problems = unusable_rows(split, *columns)
        raw[name] = without_rows(split, name, problems, data, notes)
    return finished(raw, data, notes)


def finished(raw: dict[str, Dataset], data: SourceArguments, notes: list[str]) -> Splits:
    """The splits; rows of the training split are held out if there is no other validation split.

    Raises:
        InputError: too few rows to hold some out.
    """
    if "validation" not in raw:
        _hold_out(raw, data.validation_share, notes)
    return Splits(**raw, notes=notes)


def without_test(raw: dict[str, Dataset]) -> dict[str, Dataset]:
    """Train and validation; the test split is used as validation where there is no other."""
    if "test" in raw:
        raw.setdefault("validation", raw.pop("test"))
    return raw


def sampled(splits: Splits, data: UnlabelledDataArguments) -> Splits:
    """The splits with at most `max_eval_samples` rows of validation, and a note on the sample."""
    most = data.max_eval_samples
    if most and most < len(splits.validation):
        note(splits.notes, f"Evaluated on a random sample of {most}.")
        splits.validation = splits.validation.shuffle(seed=SEED).select(range(most))
    return splits


def with_class_names(split: Dataset) -> Dataset:
    """The split with names in place of indices of a `ClassLabel`, and with integers in place of 1.0 and 2.0."""
    feature = split.features["label"]
    if isinstance(feature, ClassLabel):
        names = dict(enumerate(feature.names))  # -1 stands for none
        labels = [names.get(index) for index in split["label"][:]]
        return split.remove_columns("label").add_column("label", labels, feature=STRING)
    if feature in FLOATS:
        return split.cast_column("label", Value("int64"))  # refuses 0.5
    return split


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
    problems |= dict.fromkeys(unknown, f"unknown labels {listed(different)}; known are {listed(values)}")
    usable = without_rows(split, name, problems, data, notes)
    return usable.cast_column("label", ClassLabel(names=values))


def _replace_hidden_test(raw: dict[str, Dataset], notes: list[str]) -> None:
    """Replace a test split without labels, which GLUE hides as -1, by the validation split."""
    if "test" not in raw or set(raw["test"]["label"][:]) - {None, "-1"}:
        return
    del raw["test"]
    if "validation" in raw:
        raw["test"] = raw.pop("validation")
    note(notes, "The data set hides its test labels; its validation split is the test split.")


def _hold_out(raw: dict[str, Dataset], share: float, notes: list[str]) -> None:
    """Move rows of the training split, in their order, into a validation split; of each class the same share."""
    train = raw["train"]
    with as_input_error("cannot hold out rows; give --validation_file or another --validation_share: "):
        if "label" in train.column_names:
            rows = np.arange(len(train))
            rest, held_out = train_test_split(rows, test_size=share, random_state=SEED, stratify=train["label"][:])
        else:
            parts = Dataset.from_dict({"row": range(len(train))}).train_test_split(share, seed=SEED)
            rest, held_out = parts["train"]["row"], parts["test"]["row"]
    raw["train"] = train.select(sorted(rest))
    raw["validation"] = train.select(sorted(held_out))
    note(notes, f"No validation split was given: {len(held_out)} of {len(train)} training rows were held out.")
