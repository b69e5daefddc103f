"""The data of an experiment as files."""

import pytest
from datasets import Dataset

from hf_bidir.common.errors import InputError
from hf_bidir.paper.data import data_files, removed_rows
from hf_bidir.paper.experiments import Experiment


def test_labels_that_are_kept_get_new_numbers_in_their_order(tmp_path):
    (tmp_path / "news").mkdir()
    for split in ("train", "test"):
        texts = [f"{split} text {row}" for row in range(40)]
        Dataset.from_dict({"text": texts, "label": [row % 4 for row in range(40)]}).to_parquet(
            str(tmp_path / f"news/{split}.parquet")
        )
    files = {"train": "train.parquet", "test": "test.parquet"}
    one = Experiment("n", "N", {}, [1.0], folder="news", files=files, keep_labels=[2, 0], class_names=["two", "zero"])
    test = Dataset.from_parquet(str(data_files(one, tmp_path, tmp_path / "made")["test"]))
    assert {(text, label) for text, label in zip(test["text"], test["label"], strict=True)} == {
        (f"test text {row}", 0 if row % 4 == 2 else 1) for row in range(40) if row % 2 == 0
    }


def news(folder, texts):
    """An experiment on texts by split."""
    (folder / "news").mkdir()
    for split, rows in texts.items():
        labels = [row % 2 for row in range(len(rows))]
        Dataset.from_dict({"text": rows, "label": labels}).to_parquet(str(folder / f"news/{split}.parquet"))
    files = {split: f"{split}.parquet" for split in texts}
    return Experiment("n", "N", {}, [1.0], folder="news", files=files, class_names=["zero", "one"])


def test_evaluation_texts_that_repeat_an_earlier_split_are_left_out_and_counted(tmp_path):
    texts = {split: [f"{split} text {row}" for row in range(10)] for split in ("train", "validation", "test")}
    texts["test"][3], texts["test"][5], texts["validation"][0] = "TRAIN  text 1", "validation text 2", "train text 4"
    files = data_files(news(tmp_path, texts), tmp_path, tmp_path / "made")
    kept = {split: Dataset.from_parquet(str(file))["text"][:] for split, file in files.items()}
    assert sorted(kept["test"]) == [f"test text {row}" for row in range(10) if row not in (3, 5)]
    assert {split: len(rows) for split, rows in kept.items()} == {"train": 10, "validation": 9, "test": 8}
    assert removed_rows(tmp_path / "made") == {"validation": 1, "test": 2}


def test_a_test_split_that_repeats_the_training_split_is_refused(tmp_path):
    texts = [f"text {row}" for row in range(20)]
    with pytest.raises(InputError, match="expected texts in test that are not in an earlier split"):
        data_files(news(tmp_path, {"train": texts, "test": texts}), tmp_path, tmp_path / "made")
