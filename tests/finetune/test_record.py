from pathlib import Path

import pytest
from datasets import Dataset

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.finetune.arguments import RunArguments
from hf_bidir.finetune.data.arguments import DataArguments
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.record import begin_record, cpu_model, publishable


@pytest.mark.parametrize("name", ["hub_token", "push_to_hub_token", "token"])
def test_a_secret_is_not_published(name):
    assert publishable({name: "hf_secret", "seed": 3}) == {"seed": 3}


@pytest.mark.parametrize(
    ("value", "published"),
    [
        ("/home/anna/runs/one/checkpoint-7", "checkpoint-7"),
        ("runs/one", "runs/one"),
        ("someone/model", "someone/model"),
        ({"file": "/home/anna/fsdp.json", "size": 3}, {"file": "fsdp.json", "size": 3}),
        (["/home/anna/a", "b"], ["a", "b"]),
        (None, None),
    ],
    ids=str,
)
def test_an_absolute_path_is_published_by_its_last_part_alone(value, published):
    assert publishable({"resume_from_checkpoint": value}) == {"resume_from_checkpoint": published}


def test_a_data_file_is_published_without_its_folder():
    assert publishable({"train_file": "secret_project/train.csv"}) == {"train_file": "train.csv"}


@pytest.mark.parametrize(("source", "kind"), [(None, "scratch"), (".", "folder"), ("someone/model", "hub")], ids=str)
def test_the_record_has_the_kind_of_origin_of_the_weights(tmp_path, source, kind):
    split = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    model = BidirBertForSequenceClassification(
        BidirBertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    )
    record = begin_record(
        "text-classification",
        {"model_name_or_path": source},
        DataArguments(dataset_name="/data/reviews"),
        Splits(split, split, None, ["no", "yes"], []),
        model,
        RunArguments(output_dir=str(tmp_path), use_cpu=True),
    )
    assert record["started_from"] == kind
    assert record["data"]["train"]["source"] == "reviews"


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="only Linux has /proc/cpuinfo")
def test_the_processor_is_one_that_the_system_names():
    text = Path("/proc/cpuinfo").read_text()
    assert cpu_model()
    assert f": {cpu_model()}\n" in text or "model name" not in text
