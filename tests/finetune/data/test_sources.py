import pytest
from datasets import Dataset, DatasetDict

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import TextDataArguments
from hf_bidir.finetune.data import sources
from hf_bidir.finetune.data.text_data import read_texts

HIDDEN = "The data set hides its test labels"


def hub(monkeypatch, column="label", **labels):
    """Let the Hub hold one data set, with these labels in its splits."""
    texts = {name: [f"{name} {row}" for row in range(len(of))] for name, of in labels.items()}
    splits = {name: Dataset.from_dict({"sentence": texts[name], column: of}) for name, of in labels.items()}
    monkeypatch.setattr(sources, "load_dataset", lambda name, config: DatasetDict(splits))


@pytest.mark.parametrize(("column", "options"), [("label", {}), ("labels", {}), ("stars", {"label_column": "stars"})])
def test_a_validation_split_replaces_a_test_split_without_labels_and_the_notes_say_so(monkeypatch, column, options):
    hub(monkeypatch, column, train=[0, 1] * 10, validation=[1, 1, 0], test=[-1, -1])
    splits = read_texts(TextDataArguments(dataset_name="glue/sst2", **options))
    assert splits.test["label"][:] == [1, 1, 0]
    assert splits.notes[0] == f"{HIDDEN}: its validation split became the test split."
    assert "held out" in splits.notes[1]


def test_hidden_test_labels_without_a_validation_split_leave_no_test_split(monkeypatch):
    hub(monkeypatch, train=[0, 1] * 10, test=[-1, -1])
    splits = read_texts(TextDataArguments(dataset_name="some/data"))
    assert splits.test is None
    assert splits.notes[0] == f"{HIDDEN}."


def test_a_test_split_with_labels_is_kept(monkeypatch):
    hub(monkeypatch, train=[0, 1], validation=[1], test=[0, 1])
    splits = read_texts(TextDataArguments(dataset_name="some/data"))
    assert [len(split) for _, split in splits] == [2, 1, 2]
    assert splits.notes == []


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
