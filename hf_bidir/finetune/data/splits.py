"""Train, validation and test split in one form: an input column, integer labels, and the classes' names."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets
from sklearn.model_selection import train_test_split

from hf_bidir.common.errors import InputError, as_input_error, did_you_mean
from hf_bidir.finetune.arguments import LabelledDataArguments, SourceArguments
from hf_bidir.finetune.data.labels import check_known, classes_of, labels_of, values_of
from hf_bidir.finetune.data.problems import Problems, quoted
from hf_bidir.finetune.data.sources import read_hub

logger = logging.getLogger(__name__)

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
        return replace(self, **{name: function(split) for name, split in self})

    def note(self, sentence: str) -> None:
        """Add a note, and log it."""
        logger.warning(sentence)
        self.notes.append(sentence)

    def class_shares(self) -> dict[str, float]:
        """The share of each class in the training split; the shares sum to 1, and without labels there are none."""
        if not self.names:
            return {}
        counts = np.bincount(self.train["label"], minlength=len(self.names))
        return {name: float(count / counts.sum()) for name, count in zip(self.names, counts, strict=True)}


def raw_splits(
    data: SourceArguments,
    read_file: Callable[[str], Dataset],
    prepare: Callable[[str, Dataset], Dataset] = lambda name, part: part,
) -> dict[str, Dataset]:
    """The splits that `data` names, each part passed through `prepare`; files override a data set name.

    Raises:
        InputError: there is no training data, or something named does not exist or cannot be read.
    """
    if "train" in data.files:
        files = {name: [file] if isinstance(file, str) else file for name, file in data.files.items()}
        parts = {name: [prepare(name, read_file(file)) for file in chosen] for name, chosen in files.items()}
        return {name: concatenate_datasets(part) if len(part) > 1 else part[0] for name, part in parts.items()}
    if data.files:
        raise InputError("expected --train_file beside --validation_file and --test_file")
    if not data.dataset_name:
        raise InputError("expected training data: give --train_file or --dataset_name; see --help")
    return {name: prepare(name, split) for name, split in read_hub(data.dataset_name, data.dataset_config).items()}


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
        column, guesses: the input column, or else its usual names; the first of these is its name in the result.
        check: adds the rows without a usable input to the problems; texts are always checked.

    Raises:
        InputError: a missing column, an empty split, or rows without input or label, or whose label is unknown in the
            training split, too rare, or another only by case or blanks. One error names them all.
    """
    raw, problems = select_columns(
        raw, data.files, {guesses[0]: (column, guesses), "label": (data.label_column, LABELS)}
    )
    # in a user's own file -1 is an ordinary label
    notes = [] if data.train_file else _replace_hidden_test(raw)
    labels = _labels(raw, guesses[0], check, problems, has_names=bool(data.class_names))
    order, names = classes_of(raw["train"], labels["train"], data, "validation" in raw, problems)
    for name in raw.keys() - {"train"}:
        check_known(name, labels[name], order, "train split", problems)
    notes += problems.settle(data.drop_bad_rows)
    raw = {name: _indexed(split, labels[name], order, problems.usable(name)) for name, split in raw.items()}
    if "validation" not in raw:
        raw["train"], raw["validation"] = _hold_out(raw["train"], data.validation_share, data.split_seed, names)
        notes.append(
            f"No validation split was given: {len(raw['validation'])} training rows "
            f"({data.validation_share:.0%}, stratified by class, split seed {data.split_seed}) were held out."
        )
    _sample_training(raw, data, notes)
    if "test" not in raw:
        notes.append("There was no test split with labels, so there are no test numbers.")
    return _splits(raw, notes, names, order)


def unlabelled_splits(raw: dict[str, Dataset], data: SourceArguments, notes: Sequence[str] = ()) -> Splits:
    """Splits without classes; rows of the training split are held out if there is no other validation split.

    Raises:
        InputError: an empty split, or too few rows to hold some out.
    """
    raw, notes = dict(raw), list(notes)
    for name, split in raw.items():
        if len(split) == 0:
            raise InputError(f"the {name} split is empty; expected at least one row")
    if "validation" not in raw:
        train = raw["train"]
        if len(train) < 2:
            raise InputError(
                "expected at least two rows, one of them to be held out; there is one. Give --validation_file, or for "
                "a text file another --sample_by, where the script has it"
            )
        with as_input_error(HELD_OUT):
            rows = Dataset.from_dict({"row": range(len(train))}).train_test_split(
                data.validation_share, seed=data.split_seed
            )
        notes.append(f"{len(rows['test'])} of {len(train)} rows were held out for the evaluation.")
        # keep the order of the file, because lines of one text are adjacent
        raw["train"], raw["validation"] = (train.select(sorted(rows[part]["row"])) for part in ("train", "test"))
    _sample_training(raw, data, notes)
    return _splits(raw, notes)


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
        column, guesses, check: as in `labelled_splits`.
        names: the classes of the model.
        name, file: of the split, for errors.
        values: what stood for each class in the data that the model was trained on, as its record says.

    Raises:
        InputError: a missing column, an empty split, or rows without input, without label, or with a label that the
            model does not have. One error names them all.
    """
    columns = {guesses[0]: (column, guesses), "label": (data.label_column, LABELS)}
    raw, problems = select_columns({name: split}, {name: file} if file else {}, columns)
    labels = _labels(raw, guesses[0], check, problems, has_names=True)[name]
    order = values_of(set(labels), names, values)
    check_known(name, labels, order, "model", problems)
    for note in problems.settle(data.drop_bad_rows):
        logger.warning(note)
    return _indexed(raw[name], labels, order, problems.usable(name))


def select_columns(
    raw: Mapping[str, Dataset], files: Mapping[str, str], wanted: dict[str, tuple[str | None, tuple[str, ...]]]
) -> tuple[dict[str, Dataset], Problems]:
    """Selected columns, renamed to their roles, and the problems so far: a missing column, which is left out.

    Args:
        files: the file of each split that has one, for errors.
        wanted: for each role the column that was given, or None, and the guesses, as in `find_column`.
    """
    selected: dict[str, Dataset] = {}
    problems = Problems(selected, files)
    for name, split in raw.items():
        if len(split) == 0:
            problems.column(name, f"{problems.title(name)} is empty; expected at least one row")
        roles: dict[str, str] = {}
        for role, choice in wanted.items():
            try:
                column = find_column(problems.title(name), split, *choice, role)
            except InputError as error:
                problems.column(name, str(error))
                continue
            if column in roles:
                both = f"expected different columns for {roles[column]} and {role}; both are {column}"
                problems.column(name, both)
            roles.setdefault(column, role)
        renamed = {old: new for old, new in roles.items() if old != new}
        selected[name] = split.select_columns(list(roles)).rename_columns(renamed)
    return selected, problems


def find_column(where: str, split: Dataset, chosen: str | None, guesses: tuple[str, ...], role: str) -> str:
    """The chosen column, or the first existing one of `guesses`.

    Raises:
        InputError: there is none; the message names the split, `where`, and the option --<role>_column.
    """
    candidates = (chosen,) if chosen else guesses
    for candidate in candidates:
        if candidate in split.column_names:
            return candidate
    raise InputError(
        f"{where} has no column {' or '.join(candidates)}; its columns are: {', '.join(split.column_names)}. "
        f"Choose one with --{role}_column." + did_you_mean(candidates[0], split.column_names)
    )


def check_texts(name: str, split: Dataset, role: str, problems: Problems) -> None:
    """Add rows without a text in the column `role` to the problems; nothing if the split lacks the column."""
    texts = split[role][:] if role in split.column_names else []
    if other := [text for text in texts if text is not None and not isinstance(text, str)]:
        holds = f"expected texts as {role}; the column holds {quoted(other[:1])}"
        problems.column(name, f"{problems.title(name)}: {holds}. Choose another with --{role}_column.")
    else:
        problems.add(name, f"no {role}", [row for row, text in enumerate(texts) if not (text and text.strip())])


def _labels(
    raw: Mapping[str, Dataset], role: str, check: Check | None, problems: Problems, has_names: bool
) -> dict[str, list[str | None]]:
    """The label of each row as text; rows without input or label are problems. A column of other labels gives none."""
    for name, split in raw.items():
        if role == "text":
            check_texts(name, split, role, problems)
        elif check and role in split.column_names:
            check(name, split, problems)
    return {
        name: labels_of(name, split, problems, has_names) if "label" in split.column_names else []
        for name, split in raw.items()
    }


def _indexed(split: Dataset, labels: Sequence[str | None], order: Sequence[str], rows: list[int]) -> Dataset:
    """These rows of a split, with the index of the class as label."""
    index: dict[Any, int] = {value: index for index, value in enumerate(order)}
    if len(rows) < len(split):
        split = split.select(rows)
    return split.remove_columns("label").add_column("label", [index[labels[row]] for row in rows])


def _sample_training(raw: dict[str, Dataset], data: SourceArguments, notes: list[str]) -> None:
    most = data.max_train_samples
    if most and most < len(raw["train"]):
        raw["train"] = raw["train"].shuffle(seed=data.split_seed).select(range(most))
        notes.append(f"Trained on a random sample of {most} rows only.")


def _splits(raw: dict[str, Dataset], notes: list[str], names: Sequence[str] = (), values: Sequence[str] = ()) -> Splits:
    splits = Splits(raw["train"], raw["validation"], raw.get("test"), list(names), [], list(values))
    for note in notes:
        splits.note(note)
    return splits


def _replace_hidden_test(raw: dict[str, Dataset]) -> list[str]:
    """Replace a test split whose labels are all -1 (GLUE hides them) by the validation split; return notes."""
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
            f"cannot hold out {held_out} of {len(train)} rows for validation: both parts need each of the {len(names)} "
            f'classes, of which "{names[rarest]}" has the fewest rows, {counts[rarest]}. Give '
            "--validation_file, another --validation_share, or more rows of the small classes."
        )
    rows = train_test_split(np.arange(len(train)), test_size=share, random_state=seed, stratify=train["label"][:])
    return train.select(sorted(rows[0])), train.select(sorted(rows[1]))
