"""The texts or images of an experiment as three files: from the Hub, from a data folder, or generated."""

from pathlib import Path

from datasets import ClassLabel, Dataset, Value

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import TextDataArguments
from hf_bidir.finetune.data.image_data import IMAGE
from hf_bidir.finetune.data.sources import read_hub
from hf_bidir.finetune.data.splits import LABEL, labelled_splits, selected
from hf_bidir.finetune.data.text_data import TEXT
from research.paper.experiments import Experiment
from research.paper.repeats import without_repeats
from research.synthetic import SETS, write_splits

SPLITS = ("train", "validation", "test")


def data_files(experiment: Experiment, data_dir: Path | None, folder: Path) -> dict[str, Path]:
    """Save train, validation and test as parquet files in `folder` unless they exist; return their paths.

    At most as many rows per split as the experiment says, sampled at random. Errors as in `splits_of`.
    """
    files = {split: folder / f"{split}.parquet" for split in SPLITS}
    if all(file.is_file() for file in files.values()):
        return files
    splits, _ = splits_of(experiment, data_dir)
    for name, most in experiment.rows.items():
        splits[name] = sample(splits[name], most) if most < len(splits[name]) else splits[name]
    return write_splits(splits, folder)


def splits_of(experiment: Experiment, data_dir: Path | None) -> tuple[dict[str, Dataset], bool]:
    """Every split with all of its rows, and whether validation was held out of the training examples.

    Validation and test texts that repeat a text of an earlier split are left out, except generated ones.

    Raises:
        InputError: without a data folder the data are not on the Hub; or the data are unusable.
    """
    if experiment.synthetic:
        return SETS[experiment.synthetic].split(), True
    if data_dir is None and experiment.hub is None:
        raise InputError(f"{experiment.name} is not on the Hub; pass a folder with the data as --data-dir")
    column = IMAGE if experiment.kind == "images" else TEXT
    if data_dir is None:
        tables = read_hub(experiment.hub, None)
    else:
        folder = data_dir / experiment.folder
        tables = {split: column.read(str(folder / file)) for split, file in experiment.files.items()}
    data = TextDataArguments(validation_share=experiment.validation_share, class_names=experiment.class_names)
    raw = {name: selected(table, name, data, column, LABEL) for name, table in tables.items()}
    if experiment.keep_labels is not None:
        raw = {name: _kept(split, experiment.keep_labels) for name, split in raw.items()}
    held_out = "validation" not in raw
    splits = dict(labelled_splits(raw, data, column))
    if experiment.kind != "images":
        splits = without_repeats(splits)
    names = ClassLabel(names=experiment.class_names)  # the data have their numbers
    for name, split in splits.items():
        splits[name] = split.cast_column("label", Value("int64")).cast_column("label", names)
    return splits, held_out


def sample(split: Dataset, most: int) -> Dataset:
    """At most `most` rows, sampled at random with a fixed seed."""
    return split.shuffle(seed=0).select(range(min(most, len(split))))


def _kept(split: Dataset, labels: list[int]) -> Dataset:
    """The rows with these labels, renumbered 0, 1, ..."""
    numbers = {str(label): str(number) for number, label in enumerate(labels)}
    kept = split.filter(lambda label: label in numbers, input_columns="label")
    return kept.map(lambda row: {"label": numbers[row["label"]]})
