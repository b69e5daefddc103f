"""Train, validation and test split in one form: input columns, and for classifiers integer labels and their names."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Image, Value, concatenate_datasets
from sklearn.model_selection import train_test_split

from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.finetune.arguments import LabelledDataArguments, SourceArguments, UnlabelledDataArguments
from hf_bidir.finetune.data.checks import BadRows, find_column, listed
from hf_bidir.finetune.data.sources import read_hub

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Column:
    """A column that a task needs.

    Attributes:
        name: in the result; the option `--<name>_column` chooses another one of the data.
        guesses: its usual names in data.
        kind: the feature that it becomes; None keeps its own.
        read: reads a file that has it.
        unusable: the rows of a split without a usable entry, from the rows and the names of split and column.
    """

    name: str
    guesses: tuple[str, ...]
    kind: Value | Image | None
    read: Callable[[str], Dataset] | None = None
    unusable: Callable[[Dataset, str, str], list[int]] | None = None


LABEL = Column("label", ("label", "labels"), None)


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

    def __iter__(self):
        """The pairs (name, data set) of the splits that exist."""
        pairs = (("train", self.train), ("validation", self.validation), ("test", self.test))
        return ((name, split) for name, split in pairs if split is not None)

    def map(self, function: Callable, **options: Any) -> "Splits":
        """`Dataset.map` of every split."""
        return replace(self, **{name: split.map(function, **options) for name, split in self})

    def note(self, sentence: str) -> None:
        """Add a note, and log it."""
        logger.warning(sentence)
        self.notes.append(sentence)


def raw_splits(data: SourceArguments, *columns: Column) -> dict[str, Dataset]:
    """The splits that `data` names, with these columns alone; files override a data set name.

    Raises:
        InputError: there is no training data, or something named does not exist, cannot be read or lacks a column.
    """
    files = data.files
    if files and "train" not in files:
        raise InputError("expected --train_file beside --validation_file and --test_file")
    if not files and not data.dataset_name:
        raise InputError("expected training data: give --train_file or --dataset_name; see --help")
    if not files:
        hub = read_hub(data.dataset_name, data.dataset_config)
        return {name: selected(split, name, data, *columns) for name, split in hub.items()}
    raw = {}
    for name, paths in files.items():
        paths = [paths] if isinstance(paths, str) else paths
        tables = [selected(columns[0].read(path), name, data, *columns) for path in paths]
        raw[name] = concatenate_datasets(tables)
    return raw


def selected(split: Dataset, name: str, data: SourceArguments, *columns: Column) -> Dataset:
    """The columns of a split under their names in the result, each of its kind. Raises InputError if one is missing."""
    where = f"the {name} split"
    renamed = {}
    for column in columns:
        chosen = getattr(data, f"{column.name}_column", None)
        original = find_column(where, split, chosen, column)
        if original in renamed:
            raise InputError(f"expected different columns for {renamed[original]} and {column.name}; got {original}")
        renamed[original] = column.name
    split = split.select_columns(list(renamed)).rename_columns(renamed)
    for column in columns:
        if column.kind is not None and split.features[column.name] != column.kind:
            with as_input_error(f"expected {column.name}s in that column of {where}: ", Exception):
                split = split.cast_column(column.name, column.kind)
    return split


def labelled_splits(raw: dict[str, Dataset], data: LabelledDataArguments, column: Column) -> Splits:
    """Check inputs and labels, and hold out a validation split if there is none.

    Args:
        raw: splits with the input column and `label`: "train", and "validation" and "test" if they exist.

    Raises:
        InputError: labels that are no classes, fewer than two classes, or rows without input or label, or whose label
            is unknown in the training split or too rare; one error names all rows.
    """
    # in a user's own file -1 is an ordinary label
    notes = [] if data.train_file else _replace_hidden_test(raw)
    bad = BadRows(data.files, data.drop_bad_rows)
    raw = {name: _with_label_texts(split, name, column, bad) for name, split in raw.items()}
    values = _classes(raw["train"]["label"][:], bad, hold_out="validation" not in raw)
    names = data.class_names or values
    if len(values) < 2:
        raise InputError(f"expected at least two classes (of images: one folder per class); got {values}")
    if not len(values) == len(names) == len(set(names)):
        raise InputError(f"expected {len(values)} different class names, for the labels {listed(values)}; got {names}")
    raw, left_out = _encoded(raw, values, bad)
    notes += left_out
    if "test" not in raw:
        notes.append("There was no test split with labels, so there are no test numbers.")
    return finished(raw, data, notes, names, values)


def labelled_split(
    split: Dataset, name: str, data: LabelledDataArguments, column: Column, orders: list[list[str]]
) -> Dataset:
    """A split whose labels are classes of a model, in the first of these orders that has one; errors as above."""
    bad = BadRows(data.files, data.drop_bad_rows)
    split = _with_label_texts(split, name, column, bad)
    present = set(split["label"])
    values = next((order for order in orders if present.intersection(order)), orders[0])
    raw, notes = _encoded({name: split}, values, bad)
    for note in notes:
        logger.warning(note)
    return raw[name]


def finished(
    raw: dict[str, Dataset],
    data: SourceArguments,
    notes: list[str],
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
        notes.append(_hold_out(raw, data, raw["train"]["label"][:] if names else None))
    most = data.max_train_samples
    if most and most < len(raw["train"]):
        raw["train"] = raw["train"].shuffle(seed=data.split_seed).select(range(most))
        notes.append(f"Trained on a random sample of {most} rows only.")
    splits = Splits(raw["train"], raw["validation"], raw.get("test"), list(names), values=list(values))
    for note in notes:
        splits.note(note)
    return splits


def without_test(raw: dict[str, Dataset]) -> dict[str, Dataset]:
    """Train and validation; the test split is used as validation where there is no other."""
    test = raw.pop("test", None)
    return raw if test is None else {"validation": test} | raw


def sampled(splits: Splits, data: UnlabelledDataArguments) -> Splits:
    """The splits with at most `max_eval_samples` rows of validation, and a note on the sample."""
    most = data.max_eval_samples
    if most is not None and len(splits.validation) > most:
        splits.validation = splits.validation.shuffle(seed=data.split_seed).select(range(most))
        note = f"Evaluated on a random sample of {most}."
        if note not in splits.notes:
            splits.notes.append(note)
    return splits


def _with_label_texts(split: Dataset, name: str, column: Column, bad: BadRows) -> Dataset:
    """The split with its labels as texts, None for none; rows without input or label are bad."""
    bad.check(name, split, column)
    values, feature = split["label"][:], split.features["label"]
    if isinstance(feature, ClassLabel):
        labels = [None if value is None or value < 0 else feature.int2str(value) for value in values]
    else:
        labels = [_label_text(value) for value in values]
    bad.add(name, "no label", [row for row, label in enumerate(labels) if label is None])
    return split.remove_columns("label").add_column("label", labels, feature=Value("string"))


def _label_text(value: Any) -> str | None:
    """A label as text, the same for 1 and 1.0; None for an empty one."""
    if value is None or value != value:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int):
        raise InputError(f"expected integers or names as labels; got {value!r}")
    return str(value) if str(value).strip() else None


def _classes(labels: Sequence[str | None], bad: BadRows, hold_out: bool) -> list[str]:
    """The labels of usable training rows: integers by size, others by letters; where rows are held out, rows of a class
    without another row are bad."""
    unusable = bad.of("train")
    rows = {}
    for row, label in enumerate(labels):
        if row not in unusable:
            rows.setdefault(label, []).append(row)
    if hold_out:
        rare = [label for label in rows if len(rows[label]) == 1]
        problem = "no other row of its class, so none can be held out for validation"
        bad.add("train", problem, [rows.pop(label)[0] for label in rare])
    try:
        return sorted(rows, key=int)
    except ValueError:
        return sorted(rows)


def _encoded(raw: dict[str, Dataset], values: list[str], bad: BadRows) -> tuple[dict[str, Dataset], list[str]]:
    """The usable rows of the splits with the indices of `values` as labels, and notes; another label is a problem."""
    for name, split in raw.items():
        labels = split["label"][:]
        unknown = [row for row, label in enumerate(labels) if label not in values]
        different = sorted({str(labels[row]) for row in unknown})
        bad.add(name, f"unknown labels {listed(different)}; known are {listed(values)}", unknown)
    raw, notes = bad.settle(raw)
    classes = ClassLabel(names=values)
    return {name: split.cast_column("label", classes) for name, split in raw.items()}, notes


def _replace_hidden_test(raw: dict[str, Dataset]) -> list[str]:
    """Replace a test split whose labels are all -1 (GLUE hides them) by the validation split; return notes."""
    if "test" not in raw or set(raw["test"]["label"]) != {-1}:
        return []
    del raw["test"]
    if "validation" not in raw:
        return ["The data set hides its test labels."]
    raw["test"] = raw.pop("validation")
    return ["The data set hides its test labels: its validation split became the test split."]


def _hold_out(raw: dict[str, Dataset], data: SourceArguments, classes: list[int] | None) -> str:
    """Move rows of the training split, in their order, into a validation split; return a note."""
    train, share, seed = raw["train"], data.validation_share, data.split_seed
    with as_input_error("cannot hold out rows; give --validation_file or another --validation_share: "):
        if classes:
            rows = np.arange(len(train))
            rest, held_out = train_test_split(rows, test_size=share, random_state=seed, stratify=classes)
        else:
            rows = Dataset.from_dict({"row": range(len(train))}).train_test_split(share, seed=seed)
            rest, held_out = rows["train"]["row"], rows["test"]["row"]
    raw["train"] = train.select(sorted(rest))
    raw["validation"] = train.select(sorted(held_out))
    how = "stratified by class, " if classes else ""
    return (
        f"No validation split was given: {len(held_out)} training rows ({share:.0%}, {how}split seed {seed}) were "
        "held out."
    )
