"""The record of a run."""

import pytest
from datasets import Dataset

from hf_bidir.finetune.arguments import DataArguments, RunArguments
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.record import begin_record, publishable
from tests.tiny_models import signed_model


def test_a_secret_is_not_published():
    assert publishable({"hub_token": "hf_secret", "token": "hf_secret", "seed": 3}) == {"seed": 3}


@pytest.mark.parametrize(
    ("option", "value", "published"),
    [
        ("run_name", "/home/anna/runs/one/checkpoint-7", "path/to/checkpoint-7"),
        ("run_name", "runs/one", "runs/one"),
        ("run_name", None, None),
        ("train_file", "secret_project/train.csv", "path/to/train.csv"),
        ("train_file", ["/home/anna/a", "b/c"], ["path/to/a", "path/to/c"]),
        ("model_name_or_path", "runs/base", "path/to/base"),  # a folder here
        ("model_name_or_path", "someone/base", "someone/base"),
        ("dataset_name", "runs/photos", "runs/photos"),  # no folder here
    ],
)
def test_of_files_and_folders_only_the_last_part_is_published(option, value, published, tmp_path, monkeypatch):
    (tmp_path / "runs/base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert publishable({option: value}) == {option: published}


def test_the_record_names_a_data_set_without_its_place():
    split = Dataset.from_dict({"text": ["a", "b", "c"], "label": [0, 1, 1]})
    data, splits = DataArguments(dataset_name="/data/reviews"), Splits(split, split, None, ["no", "yes"], [])
    args = RunArguments(output_dir="unused", use_cpu=True)
    record = begin_record("text-classification", data, splits, signed_model("bert"), args)
    assert record["data"]["train"] == {"source": "reviews", "rows": 3}
    assert record["class_shares"] == {"no": pytest.approx(1 / 3), "yes": pytest.approx(2 / 3)}
