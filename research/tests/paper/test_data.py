"""The data of an experiment as files."""

import pytest
from datasets import Dataset

from hf_bidir.finetune.data.overlap import find_repeats
from research.paper.data import data_files, removed_rows
from research.paper.experiments import Experiment


@pytest.fixture
def news(tmp_path):
    """A data folder with 40 training and test texts of four classes; the first 8 of both are equal."""
    for split in ("train", "test"):
        texts = [f"{'both' if row < 8 else split} {row}" for row in range(40)]
        rows = Dataset.from_dict({"text": texts, "label": [row % 4 for row in range(40)]})
        rows.to_parquet(str(tmp_path / f"{split}.parquet"))
    return tmp_path


def experiment(**options):
    files = {"train": "train.parquet", "test": "test.parquet"}
    names = ["zero", "one", "two", "three"]
    return Experiment("n", "N", {}, [1.0], **({"folder": ".", "files": files, "class_names": names} | options))


def test_labels_that_are_kept_get_new_numbers_in_their_order(news, tmp_path):
    one = experiment(keep_labels=[2, 0], class_names=["two", "zero"])
    test = Dataset.from_parquet(str(data_files(one, news, tmp_path / "made")["test"]))
    assert {(text, label) for text, label in zip(test["text"], test["label"], strict=True)} == {
        (f"test {row}", 0 if row % 4 == 2 else 1) for row in range(8, 40) if row % 2 == 0
    }


def test_evaluation_rows_that_repeat_an_earlier_split_are_removed_and_counted(news, tmp_path):
    files = data_files(experiment(validation_share=0.5), news, tmp_path / "made")
    texts = {split: Dataset.from_parquet(str(file))["text"][:] for split, file in files.items()}
    assert {split: len(rows) for split, rows in texts.items()} == {"train": 20, "validation": 20, "test": 32}
    assert all(repeats.kept == list(range(len(texts[split]))) for split, repeats in find_repeats(texts).items())
    assert removed_rows(files["test"]) == {"validation": 0, "test": 8}


def test_a_sample_of_the_rows_is_taken_after_the_removal(news, tmp_path):
    files = data_files(experiment(), news, tmp_path / "made", {"test": 30})
    assert len(Dataset.from_parquet(str(files["test"]))) == 30
    assert removed_rows(files["test"])["test"] == 8
