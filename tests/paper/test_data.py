"""The data of an experiment as files."""

from datasets import Dataset

from hf_bidir.paper.data import data_files
from hf_bidir.paper.experiments import Experiment


def test_labels_that_are_kept_get_new_numbers_in_their_order(tmp_path):
    (tmp_path / "news").mkdir()
    rows = Dataset.from_dict({"text": [f"text {row}" for row in range(40)], "label": [row % 4 for row in range(40)]})
    for split in ("train", "test"):
        rows.to_parquet(str(tmp_path / f"news/{split}.parquet"))
    files = {"train": "train.parquet", "test": "test.parquet"}
    one = Experiment("n", "N", {}, [1.0], folder="news", files=files, keep_labels=[2, 0], class_names=["two", "zero"])
    test = Dataset.from_parquet(str(data_files(one, tmp_path, tmp_path / "made")["test"]))
    assert {(text, label) for text, label in zip(test["text"], test["label"], strict=True)} == {
        (f"text {row}", 0 if row % 4 == 2 else 1) for row in range(40) if row % 2 == 0
    }
