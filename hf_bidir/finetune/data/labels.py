"""Labels of a table: as text, in order, checked, and what stands for each class of a model."""

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset

from hf_bidir.common.errors import shared_names
from hf_bidir.finetune.arguments import LabelledDataArguments
from hf_bidir.finetune.data.problems import Problems, listed, quoted

WHOLE = re.compile(r"([+-]?\d+)(\.0+)?")  # how pandas writes an integer beside missing values: 1.0
NUMBER = re.compile(r"[+-]?\d*\.?\d+(e[+-]?\d+)?", re.IGNORECASE)


def labels_of(name: str, split: Dataset, problems: Problems, has_names: bool) -> list[str | None]:
    """The label of each row, as text; None, and a problem, where there is none. No labels where they are no classes.

    Decimals are no classes, except as text: in a file with types, or in a csv file of classes that are known by name.
    """
    values, feature = split["label"][:], split.features["label"]
    if isinstance(feature, ClassLabel):
        labels = [None if value is None or value < 0 else feature.int2str(value) for value in values]
    else:
        labels = [_label(value) for value in values]
        present = {label for label in labels if label is not None}
        decimals = sorted(label for label in present if not WHOLE.fullmatch(label))
        has_types = Path(problems.files.get(name, "")).suffix.lower() not in (".csv", ".tsv")
        are_texts = getattr(feature, "dtype", None) in ("string", "large_string") and (has_types or has_names)
        are_numbers = decimals and all(map(NUMBER.fullmatch, present))
        if (are_numbers and not are_texts) or (values and isinstance(values[0], list | dict)):
            advice = "" if has_types or has_names else "; if these are classes, name them with --class_names"
            expected = f"expected integers or names as labels; it has {quoted(decimals[:1])}{advice}"
            problems.column(name, f"{problems.title(name)}: {expected}")
            return []
    problems.add(name, "no label", [row for row, label in enumerate(labels) if label is None])
    return labels


def _label(value: Any) -> str | None:
    """A label as text, the same for 1, 1.0, "1" and "1.0"; None for an empty one."""
    text = "" if value is None or value != value else str(value)
    whole = WHOLE.fullmatch(text)
    return whole[1] if whole else text if text.strip() else None


def classes_of(
    train: Dataset, labels: Sequence[str | None], data: LabelledDataArguments, has_validation: bool, problems: Problems
) -> tuple[list[str], list[str]]:
    """The classes of the training split, as they stand in the data, and their names; both in the order of indices."""
    if not labels:
        return [], []
    declared, rows_of = isinstance(train.features["label"], ClassLabel), _rows_of("train", labels, problems)
    if not declared and not data.class_names:
        _check_spelling(rows_of, problems)
    rare = [] if has_validation else [label for label, rows in rows_of.items() if len(rows) == 1]
    if rare:
        what = f"no other row of class {quoted(rare)}, so none can be held out for validation"
        problems.add("train", what, [rows_of.pop(label)[0] for label in rare])
    whole = all(map(WHOLE.fullmatch, rows_of))  # integers are sorted by size, other labels by letters
    in_order = train.features["label"].names if declared else sorted(rows_of, key=int if whole else None)
    order = [label for label in in_order if label in rows_of]
    if len(order) < 2:
        has = quoted(order) or "none"
        expected = "expected at least two classes (of images: one folder per class)"
        problems.column("train", f"{expected}; the train split has {has}")
    names = data.class_names or order
    if len(names) != len(order) or len(set(names)) != len(names):
        expected = f"expected {len(order)} different class names, for the labels {listed(order)}"
        problems.column("train", f"{expected}; --class_names has: {shared_names(names) or ', '.join(names)}")
    return order, names


def _rows_of(name: str, labels: Sequence[str | None], problems: Problems) -> dict[str, list[int]]:
    """The usable rows of each label."""
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row in problems.usable(name):
        if (label := labels[row]) is not None:
            rows_of[label].append(row)
    return rows_of


def _check_spelling(rows_of: dict[str, list[int]], problems: Problems) -> None:
    """Remove labels that differ from a more frequent one only by case or blanks; they are a problem."""
    alike = defaultdict(list)
    for label in sorted(rows_of, key=lambda label: -len(rows_of[label])):
        alike["".join(label.split()).casefold()].append(label)
    pairs = [(label, first) for first, *others in alike.values() for label in others]
    differ = listed([f"{quoted([label])} from {quoted([first])}" for label, first in pairs])
    what = f"labels that differ only by case or blanks from one with more rows: {differ}; --class_names keeps them"
    problems.add("train", what, [row for label, _ in pairs for row in rows_of.pop(label)])


def check_known(name: str, labels: Sequence[str | None], known: Sequence[str], owner: str, problems: Problems) -> None:
    """Rows whose label is none of the `known` ones, which the `owner` has, are a problem."""
    if labels and known:
        unknown = {label: rows for label, rows in _rows_of(name, labels, problems).items() if label not in known}
        counts = listed([f"{quoted([label])} ({len(rows)})" for label, rows in unknown.items()])
        what = f"labels that the {owner} lacks: {counts}; it has {quoted(known)}"
        problems.add(name, what, [row for rows in unknown.values() for row in rows])


def values_of(present: Collection[str | None], names: list[str], values: list[str] | None) -> list[str]:
    """What stands for each class: the values of the model's own data, or names, or for want of a record indices."""
    for order in (values or names, names):
        if not set(order).isdisjoint(present):
            return order
    return values or [str(index) for index in range(len(names))]
