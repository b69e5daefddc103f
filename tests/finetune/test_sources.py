import pytest
from datasets import Dataset, DatasetDict

from hf_bidir.finetune import sources
from hf_bidir.finetune.errors import InputError


def hub(monkeypatch, **labels):
    """Let the Hub hold one data set, with these labels in its splits."""
    splits = {
        name: Dataset.from_dict({"sentence": ["x"] * len(of), "label": of}) for name, of in labels.items()
    }
    monkeypatch.setattr(sources, "load_dataset", lambda name, config: DatasetDict(splits))


def test_a_validation_split_replaces_a_test_split_without_labels(monkeypatch):
    hub(monkeypatch, train=[0, 1], validation=[1, 1, 0], test=[-1, -1])
    splits = sources.read_hub("glue/sst2", None)
    assert set(splits) == {"train", "test"}
    assert splits["test"]["label"][:] == [1, 1, 0]


def test_a_test_split_with_labels_is_kept(monkeypatch):
    hub(monkeypatch, train=[0, 1], validation=[1], test=[0, 1])
    assert set(sources.read_hub("some/data", None)) == {"train", "validation", "test"}


def test_a_data_set_without_a_train_split_is_one_clear_error(monkeypatch):
    hub(monkeypatch, validation=[0, 1])
    with pytest.raises(InputError, match="expected a train split in 'some/data'; it has: validation"):
        sources.read_hub("some/data", None)


def test_a_data_set_that_cannot_be_loaded_is_one_clear_error(monkeypatch):
    def load_dataset(name, config):
        raise ConnectionError("no network")

    monkeypatch.setattr(sources, "load_dataset", load_dataset)
    with pytest.raises(InputError, match="cannot load the data set 'some/data' from the Hub: no network"):
        sources.read_hub("some/data", None)
