"""The texts or images of an experiment as three files: from the Hub, from a data folder, or generated."""

from collections.abc import Mapping
from pathlib import Path

from datasets import ClassLabel, Dataset, Value

from hf_bidir.common.files import read_json, write_json
from hf_bidir.finetune.arguments import TextDataArguments
from hf_bidir.finetune.data.image_data import IMAGE
from hf_bidir.finetune.data.sources import read_hub
from hf_bidir.finetune.data.splits import LABEL, labelled_splits, selected
from hf_bidir.finetune.data.text_data import TEXT
from research.paper.experiments import Experiment
from research.paper.repeats import find_repeats
from research.synthetic import SETS, write_splits

RECORD = "splits.json"  # beside the data files: how they were made
HELD_OUT = "validation held out of the training examples"
REMOVED = "removed rows, which repeat an earlier split"
SPLITS = ("train", "validation", "test")


def data_files(
    experiment: Experiment, data_dir: Path | None, folder: Path, rows: Mapping[str, int] | None = None
) -> dict[str, Path]:
    """Save train, validation and test as parquet files in `folder` unless they exist; return their paths.

    Validation and test texts that repeat a text of an earlier split are left out, except generated ones; then `rows`
    limits the rows per split, sampled at random. Without a data folder the Hub is read.

    Raises:
        InputError: a file is missing, the Hub does not have the data, or the data are unusable.
    """
    files = {split: folder / f"{split}.parquet" for split in SPLITS}
    if all(file.is_file() for file in [*files.values(), folder / RECORD]):
        return files
    splits, held_out = labelled_data(experiment, data_dir)
    removed = {}
    if not experiment.synthetic and experiment.kind != "images":
        for name, repeats in find_repeats({name: split["text"][:] for name, split in splits.items()}).items():
            splits[name] = splits[name].select(repeats.kept)
            removed[name] = repeats.removed
        removed.pop("train", None)
    splits = {name: _at_most(split, (rows or {}).get(name)) for name, split in splits.items()}
    files = write_splits(splits, folder)
    write_json(folder / RECORD, {HELD_OUT: held_out, REMOVED: removed})
    return files


def validation_was_held_out(file: Path) -> bool:
    """Whether a validation file from `data_files` was held out of the training examples."""
    return read_json(file.parent / RECORD)[HELD_OUT]


def removed_rows(file: Path) -> dict[str, int]:
    """The numbers of rows, by split, that `data_files` left out of the data set of a file before it took a sample.

    Empty for images and generated texts, which are not searched for repeated rows.
    """
    return {split: sum(reasons.values()) for split, reasons in read_json(file.parent / RECORD)[REMOVED].items()}


def labelled_data(experiment: Experiment, data_dir: Path | None) -> tuple[dict[str, Dataset], bool]:
    """Every split with all of its rows, and whether validation was held out of the training examples."""
    if experiment.synthetic:
        return SETS[experiment.synthetic].split(), True
    data = TextDataArguments(validation_share=experiment.validation_share, class_names=experiment.class_names)
    column = IMAGE if experiment.kind == "images" else TEXT
    if data_dir is None:
        tables = read_hub(experiment.hub, None)
    else:
        tables = {split: column.read(str(file)) for split, file in experiment.source_files(data_dir).items()}
    raw = {name: selected(table, name, data, column, LABEL) for name, table in tables.items()}
    if experiment.keep_labels is not None:
        raw = {name: _kept(split, experiment.keep_labels) for name, split in raw.items()}
    held_out = "validation" not in raw
    splits = dict(labelled_splits(raw, data, column))
    names = ClassLabel(names=experiment.class_names)  # the data have their numbers
    for name, split in splits.items():
        splits[name] = split.cast_column("label", Value("int64")).cast_column("label", names)
    return splits, held_out


def sample(split: Dataset, most: int) -> Dataset:
    """At most `most` rows, sampled at random with a fixed seed."""
    return split.shuffle(seed=0).select(range(min(most, len(split))))


def _at_most(split: Dataset, most: int | None) -> Dataset:
    """A sample, or the rows in their order if there are no more."""
    return split if most is None or most >= len(split) else sample(split, most)


def _kept(split: Dataset, labels: list[int]) -> Dataset:
    """The rows with these labels, renumbered 0, 1, ..."""
    values = split["label"][:]
    rows = [row for row, label in enumerate(values) if label in labels]
    split = split.select(rows)
    return split.remove_columns("label").add_column("label", [labels.index(values[row]) for row in rows])
