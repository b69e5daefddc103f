"""Train, validation and test split in one form: an input column, integer labels, and the classes' names."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset
from sklearn.model_selection import train_test_split

from hf_bidir.common.errors import InputError, as_input_error, did_you_mean
from hf_bidir.finetune.data.arguments import DataArguments, LabelledDataArguments
from hf_bidir.finetune.data.sources import read_hub

logger = logging.getLogger(__name__)

PARTS = {"train": "train", "validation": "test"}  # names of splits here and in train_test_split
HELD_OUT = "cannot hold out a validation split; give --validation_file or a larger --validation_share: "
SEPARATORS = {";", "|"}


@dataclass
class Splits:
    """The examples of a run.

    Attributes:
        train, validation: data sets with an input column (`text` or `image`) and `label`, an index into
            `names`; or with `source` and `target`.
        test: the same, or None when there is no test data.
        names: the class names, by label index; empty for data without labels.
        notes: automatic decisions about the data and the run, in sentences.
    """

    train: Dataset
    validation: Dataset
    test: Dataset | None
    names: list[str]
    notes: list[str]

    def __iter__(self):
        """The pairs (name, data set) of the splits that exist."""
        pairs = (("train", self.train), ("validation", self.validation), ("test", self.test))
        return ((name, split) for name, split in pairs if split is not None)

    def map(self, function: Callable[[Dataset], Dataset]) -> "Splits":
        """The same splits, each passed through `function`."""
        mapped = {name: function(split) for name, split in self}
        return Splits(names=self.names, notes=self.notes, **({"test": None} | mapped))

    def class_shares(self) -> dict[str, float]:
        """The share of each class in the training split; the shares sum to 1, and without labels there are none."""
        if not self.names:
            return {}
        counts = np.bincount(self.train["label"], minlength=len(self.names))
        return {name: float(count / counts.sum()) for name, count in zip(self.names, counts, strict=True)}


def raw_splits(data: DataArguments, read_file: Callable[[str], Dataset]) -> dict[str, Dataset]:
    """The unprocessed splits that `data` names; files override a data set name.

    Raises:
        InputError: there is no training data, or something named does not exist or cannot be read.
    """
    if not data.train_file:
        if data.validation_file or data.test_file:
            raise InputError("expected --train_file beside --validation_file and --test_file")
        if not data.dataset_name:
            raise InputError("expected training data: give --train_file or --dataset_name; see --help")
        return read_hub(data.dataset_name, data.dataset_config)
    files = {"train": data.train_file, "validation": data.validation_file, "test": data.test_file}
    return {name: read_file(file) for name, file in files.items() if file}


def labelled_splits(
    raw: dict[str, Dataset], data: LabelledDataArguments, column: str | None, guesses: tuple[str, ...]
) -> Splits:
    """Reduce the splits to input and label, check the labels, and hold out a validation split if needed.

    Args:
        raw: "train", and "validation" and "test" if they exist.
        data: the label column, the class names and the share to hold out.
        column: the input column; None looks for one of `guesses`.
        guesses: usual names of the input column; the first is its name in the result.

    Raises:
        InputError: a missing column, an empty split, or a label that is missing, is unknown in the training
            split or has no name.
    """
    raw = {name: _select(name, split, data.label_column, column, guesses) for name, split in raw.items()}
    # in a user's own file -1 is an ordinary label
    notes = [] if data.train_file else _replace_hidden_test(raw)
    labels = {name: _label_values(name, split) for name, split in raw.items()}
    known, names = _classes(raw["train"], labels["train"], data.class_names)
    for name, values in labels.items():
        _check_known(name, values, known)
        indices = [known[value] for value in values]
        raw[name] = raw[name].remove_columns("label").add_column("label", indices)
    if "validation" not in raw:
        raw["train"], raw["validation"] = _hold_out(raw["train"], data.validation_share, data.split_seed)
        notes.append(
            f"No validation split was given: {len(raw['validation'])} training rows "
            f"({data.validation_share:.0%}, stratified by class, split seed {data.split_seed}) were held out."
        )
    _sample_training(raw, data.max_train_samples, data.split_seed, notes)
    if "test" not in raw:
        notes.append("There was no test split with labels, so there are no test numbers.")
    for note in notes:
        logger.warning(note)
    return Splits(raw["train"], raw["validation"], raw.get("test"), names, notes)


def unlabelled_splits(
    raw: dict[str, Dataset], share: float, seed: int, max_train_samples: int | None, notes: Sequence[str] = ()
) -> Splits:
    """Splits without classes; rows of the training split are held out if there is no other validation split.

    Args:
        raw: "train", and "validation" and "test" if they exist.
        share, seed: the share of rows to hold out, and the seed that chooses them.
        max_train_samples: the most rows to train on, or None for all.
        notes: earlier decisions.

    Raises:
        InputError: an empty split, or too few rows to hold some out.
    """
    raw, notes = dict(raw), list(notes)
    for name, split in raw.items():
        if len(split) == 0:
            raise InputError(f"the {name} split is empty; expected at least one row")
    if "validation" not in raw:
        if len(raw["train"]) < 2:
            raise InputError(
                "expected at least two rows, one of them to be held out; there is one. Give --validation_file, or for "
                "a text file another --sample_by, where the script has it"
            )
        rows = Dataset.from_dict({"row": range(len(raw["train"]))})
        with as_input_error(HELD_OUT):
            parts = rows.train_test_split(share, seed=seed)
        notes.append(f"{len(parts['test'])} of {len(rows)} rows were held out for the evaluation.")
        # keep the order of the file, because lines of one text are adjacent
        raw |= {name: raw["train"].select(sorted(parts[part]["row"])) for name, part in PARTS.items()}
    _sample_training(raw, max_train_samples, seed, notes)
    for note in notes:
        logger.warning(note)
    return Splits(raw["train"], raw["validation"], raw.get("test"), [], notes)


def _sample_training(raw: dict[str, Dataset], most: int | None, seed: int, notes: list[str]) -> None:
    if most and most < len(raw["train"]):
        raw["train"] = raw["train"].shuffle(seed=seed).select(range(most))
        notes.append(f"Trained on a random sample of {most} rows only.")


def labelled_split(
    split: Dataset,
    data: LabelledDataArguments,
    column: str | None,
    guesses: tuple[str, ...],
    names: list[str],
    name: str,
) -> Dataset:
    """A single split whose labels are the names or the indices of a model's classes.

    Args:
        split, data, column, guesses: as in `labelled_splits`.
        names: the classes of the model.
        name: of the split, for errors.

    Raises:
        InputError: a missing column, an empty split, or a label that is missing or that the model does not have.
    """
    split = _select(name, split, data.label_column, column, guesses)
    values = _label_values(name, split)
    named = any(isinstance(value, str) for value in values) or {str(value) for value in values} <= set(names)
    known: dict[Any, int] = (
        {label: index for index, label in enumerate(names)} if named else {i: i for i in range(len(names))}
    )
    values = [str(value) for value in values] if named else values
    _check_known(name, values, known, "model")
    return split.remove_columns("label").add_column("label", [known[value] for value in values])


def _select(
    name: str, split: Dataset, label_column: str | None, column: str | None, guesses: tuple[str, ...]
) -> Dataset:
    """Only the input and label columns, with their names in `Splits`."""
    if len(split) == 0:
        raise InputError(f"the {name} split is empty; expected at least one row")
    wanted = {guesses[0]: (column, guesses), "label": (label_column, ("label", "labels"))}
    return named_columns(name, split, wanted)


def named_columns(name: str, split: Dataset, wanted: dict[str, tuple[str | None, tuple[str, ...]]]) -> Dataset:
    """Selected columns of a split, renamed to their roles.

    Args:
        name: of the split, for errors.
        wanted: for each role the column that was given, or None, and the guesses, as in `find_column`.

    Raises:
        InputError: a column is missing, or has two roles.
    """
    found = {role: find_column(name, split, *choice, role) for role, choice in wanted.items()}
    if len(set(found.values())) < len(found):
        raise InputError(f"expected different columns for {' and '.join(found)}; both are {next(iter(found.values()))}")
    split = split.select_columns(list(found.values()))
    return split.rename_columns({old: new for new, old in found.items() if old != new})


def find_column(name: str, split: Dataset, given: str | None, guesses: tuple[str, ...], role: str) -> str:
    """The given column, or the first existing one of `guesses`.

    Raises:
        InputError: there is none; the message names the split and the option --<role>_column.
    """
    candidates = (given,) if given else guesses
    for candidate in candidates:
        if candidate in split.column_names:
            return candidate
    if len(split.column_names) == 1 and (found := SEPARATORS & set(split.column_names[0])):
        raise InputError(
            f"the {name} split has one column, {split.column_names[0]}; separate columns by commas instead of "
            f"{' '.join(found)}"
        )
    raise InputError(
        f"the {name} split has no column {' or '.join(candidates)}; its columns are: "
        f"{', '.join(split.column_names)}. Choose one with --{role}_column."
        + did_you_mean(candidates[0], split.column_names)
    )


def _replace_hidden_test(raw: dict[str, Dataset]) -> list[str]:
    """Replace a test split whose labels are all -1 (GLUE hides them) by the validation split.

    Returns:
        Notes about the replacement.
    """
    if "test" not in raw or set(raw["test"]["label"]) != {-1}:
        return []
    del raw["test"]
    if "validation" not in raw:
        return ["The data set hides its test labels."]
    raw["test"] = raw.pop("validation")
    return ["The data set hides its test labels: its validation split became the test split."]


def _label_values(name: str, split: Dataset) -> list[str | int]:
    """The class names if the data has names, else the label values."""
    values, feature = split["label"][:], split.features["label"]
    for row, value in enumerate(values):
        named = isinstance(feature, ClassLabel)
        if value is None or value == "" or (named and value < 0):
            raise InputError(f"row {row} of the {name} split has no label (it holds {value!r}); remove such rows")
        if (isinstance(value, float) and not value.is_integer()) or not isinstance(value, str | int | float):
            raise InputError(f"expected integers or strings as labels; row {row} of the {name} split has {value!r}")
    if isinstance(feature, ClassLabel):
        return feature.int2str(values)
    return [int(value) if isinstance(value, float) else value for value in values]


def _classes(
    train: Dataset, values: list[str | int], given_names: list[str] | None
) -> tuple[dict[str | int, int], list[str]]:
    """The label index of each value in the training split, and the name of each index."""
    feature, present = train.features["label"], set(values)
    with as_input_error("the train split mixes integers and strings as labels: ", TypeError):
        order = [name for name in feature.names if name in present] if isinstance(feature, ClassLabel) else None
        order = order or sorted(present)
    if len(order) < 2:
        raise InputError(
            f"expected at least two classes (of images: one folder per class); every row of the train split has the "
            f"label {order[0]!r}"
        )
    names = given_names or [str(value) for value in order]
    if len(names) != len(order) or len(set(names)) != len(names):
        raise InputError(
            f"expected {len(order)} different class names, for the labels {', '.join(map(str, order))}; "
            f"--class_names has: {', '.join(names)}"
        )
    return {value: index for index, value in enumerate(order)}, names


def _check_known(name: str, values: Sequence[Any], known: Mapping[Any, int], owner: str = "train split") -> None:
    unknown = Counter(value for value in values if value not in known)
    if unknown:
        listed = ", ".join(f"{value!r} ({count} rows)" for value, count in unknown.most_common(5))
        raise InputError(
            f"the {name} split has labels that the {owner} lacks: {listed}; "
            f"the {owner} has: {', '.join(repr(value) for value in known)}"
        )


def _hold_out(train: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Split rows off the training split, stratified by class."""
    with as_input_error(HELD_OUT):
        kept, held_out = train_test_split(
            np.arange(len(train)), test_size=share, random_state=seed, stratify=train["label"][:]
        )
    return train.select(sorted(kept)), train.select(sorted(held_out))
