"""Train, validation and test split in one form: an input column, integer labels, and the classes' names."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.model_selection import train_test_split

from hf_bidir.common.errors import InputError, as_input_error, did_you_mean
from hf_bidir.finetune.data.arguments import DataArguments, LabelledDataArguments
from hf_bidir.finetune.data.labels import check_known, classes_of, labels_of, values_of
from hf_bidir.finetune.data.problems import Problems
from hf_bidir.finetune.data.sources import read_hub

logger = logging.getLogger(__name__)

PARTS = {"train": "train", "validation": "test"}  # names of splits here and in train_test_split
LABELS = ("label", "labels")
HELD_OUT = "cannot hold out a validation split; give --validation_file or a larger --validation_share: "
Check = Callable[[str, Dataset, Problems], None]


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
    names: list[str]
    notes: list[str]
    values: list[str] = field(default_factory=list)

    def __iter__(self):
        """The pairs (name, data set) of the splits that exist."""
        pairs = (("train", self.train), ("validation", self.validation), ("test", self.test))
        return ((name, split) for name, split in pairs if split is not None)

    def map(self, function: Callable[[Dataset], Dataset]) -> "Splits":
        """The same splits, each passed through `function`."""
        mapped = {name: function(split) for name, split in self}
        return replace(self, **mapped)

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
    return {name: read_file(file) for name, file in data.files.items()}


def labelled_splits(
    raw: dict[str, Dataset],
    data: LabelledDataArguments,
    column: str | None,
    guesses: tuple[str, ...],
    check: Check | None = None,
) -> Splits:
    """Reduce the splits to input and label, check the labels, and hold out a validation split if needed.

    Args:
        raw: "train", and "validation" and "test" if they exist.
        data: the label column, the class names and the share to hold out.
        column: the input column; None looks for one of `guesses`.
        guesses: usual names of the input column; the first is its name in the result.
        check: adds the rows without a usable input to the problems; texts are always checked.

    Raises:
        InputError: a missing column, an empty split, or rows without input or label, or whose label is unknown in the
            training split, too rare, or another only by case or blanks. One error names them all.
    """
    raw, problems = _select(raw, data.files, data, column, guesses)
    # in a user's own file -1 is an ordinary label
    notes = [] if data.train_file else _replace_hidden_test(raw)
    labels = _check_inputs(raw, guesses[0], check, problems, has_names=bool(data.class_names))
    order, names = classes_of(raw["train"], labels["train"], data, "validation" in raw, problems)
    for name in raw.keys() - {"train"}:
        check_known(name, labels[name], order, "train split", problems)
    notes += problems.settle(data.drop_bad_rows)
    known = {value: index for index, value in enumerate(order)}
    raw = {name: _indexed(split, labels[name], known, problems.usable(name)) for name, split in raw.items()}
    if "validation" not in raw:
        raw["train"], raw["validation"] = _hold_out(raw["train"], data.validation_share, data.split_seed, names)
        notes.append(
            f"No validation split was given: {len(raw['validation'])} training rows "
            f"({data.validation_share:.0%}, stratified by class, split seed {data.split_seed}) were held out."
        )
    _sample_training(raw, data.max_train_samples, data.split_seed, notes)
    if "test" not in raw:
        notes.append("There was no test split with labels, so there are no test numbers.")
    for note in notes:
        logger.warning(note)
    return Splits(raw["train"], raw["validation"], raw.get("test"), names, notes, order)


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
    values: list[str] | None = None,
    file: str | None = None,
    check: Check | None = None,
) -> Dataset:
    """A single split whose labels are classes of a model.

    Args:
        split, data, column, guesses, check: as in `labelled_splits`.
        names: the classes of the model.
        name: of the split, for errors.
        values: what stood for each class in the data that the model was trained on, as its record says.
        file: of the split, for errors.

    Raises:
        InputError: a missing column, an empty split, or rows without input, without label, or with a label that the
            model does not have. One error names them all.
    """
    raw, problems = _select({name: split}, {name: file} if file else {}, data, column, guesses)
    labels = _check_inputs(raw, guesses[0], check, problems, has_names=True)[name]
    order = values_of(set(labels), names, values)
    check_known(name, labels, order, "model", problems)
    for note in problems.settle(data.drop_bad_rows):
        logger.warning(note)
    known = {value: index for index, value in enumerate(order)}
    return _indexed(raw[name], labels, known, problems.usable(name))


def _indexed(split: Dataset, labels: Sequence[str | None], known: Mapping[Any, int], rows: list[int]) -> Dataset:
    """These rows of a split, with the index of the class as label."""
    if len(rows) < len(split):
        split = split.select(rows)
    return split.remove_columns("label").add_column("label", [known[labels[row]] for row in rows])


def _select(
    raw: Mapping[str, Dataset],
    files: Mapping[str, str],
    data: LabelledDataArguments,
    column: str | None,
    guesses: tuple[str, ...],
) -> tuple[dict[str, Dataset], Problems]:
    """Only the input and label columns, with their names in `Splits`, and what is wrong with the columns."""
    selected: dict[str, Dataset] = {}
    problems, wanted = Problems(selected, files), {guesses[0]: (column, guesses), "label": (data.label_column, LABELS)}
    for name, split in raw.items():
        selected[name] = named_columns(name, split, wanted, problems)
    return selected, problems


def _check_inputs(
    raw: Mapping[str, Dataset], role: str, check: Check | None, problems: Problems, has_names: bool
) -> dict[str, list[str | None]]:
    """The label of each row as text; rows without input or label are problems. A column of other labels gives none."""
    for name, split in raw.items():
        if role == "text":
            problems.texts(name, split, role)
        elif check and role in split.column_names:
            check(name, split, problems)
    return {
        name: labels_of(name, split, problems, has_names) if "label" in split.column_names else []
        for name, split in raw.items()
    }


def named_columns(
    name: str, split: Dataset, wanted: dict[str, tuple[str | None, tuple[str, ...]]], problems: Problems
) -> Dataset:
    """Selected columns of a split, renamed to their roles; one that is missing is left out, and is a problem.

    Args:
        name: of the split, for errors.
        wanted: for each role the column that was given, or None, and the guesses, as in `find_column`.
    """
    if len(split) == 0:
        problems.column(name, f"{problems.title(name)} is empty; expected at least one row")
    found: dict[str, str] = {}
    for role, choice in wanted.items():
        try:
            column = find_column(problems.title(name), split, *choice, role)
        except InputError as error:
            problems.column(name, str(error))
            continue
        if column in found:
            problems.column(name, f"expected different columns for {found[column]} and {role}; both are {column}")
        found.setdefault(column, role)
    return split.select_columns(list(found)).rename_columns({old: new for old, new in found.items() if old != new})


def find_column(where: str, split: Dataset, given: str | None, guesses: tuple[str, ...], role: str) -> str:
    """The given column, or the first existing one of `guesses`.

    Raises:
        InputError: there is none; the message names the split, `where`, and the option --<role>_column.
    """
    candidates = (given,) if given else guesses
    for candidate in candidates:
        if candidate in split.column_names:
            return candidate
    raise InputError(
        f"{where} has no column {' or '.join(candidates)}; its columns are: {', '.join(split.column_names)}. "
        f"Choose one with --{role}_column." + did_you_mean(candidates[0], split.column_names)
    )


def _replace_hidden_test(raw: dict[str, Dataset]) -> list[str]:
    """Replace a test split whose labels are all -1 (GLUE hides them) by the validation split.

    Returns:
        Notes about the replacement.
    """
    test = raw.get("test")
    if test is None or "label" not in test.column_names or set(test["label"]) != {-1}:
        return []
    del raw["test"]
    if "validation" not in raw:
        return ["The data set hides its test labels."]
    raw["test"] = raw.pop("validation")
    return ["The data set hides its test labels: its validation split became the test split."]


def _hold_out(train: Dataset, share: float, seed: int, names: list[str]) -> tuple[Dataset, Dataset]:
    """Split rows off the training split, stratified by class."""
    counts = np.bincount(train["label"], minlength=len(names))
    held_out = math.ceil(share * len(train))
    if not len(names) <= held_out <= len(train) - len(names):
        rarest = int(counts.argmin())
        raise InputError(
            f"cannot hold out a validation split of {held_out} of {len(train)} rows with each of the {len(names)} "
            f'classes, of which "{names[rarest]}" has the fewest rows, {counts[rarest]}, and leave as many. Give '
            "--validation_file, another --validation_share, or more rows of the small classes."
        )
    rows = train_test_split(np.arange(len(train)), test_size=share, random_state=seed, stratify=train["label"][:])
    return train.select(sorted(rows[0])), train.select(sorted(rows[1]))
