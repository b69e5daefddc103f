"""The experiments of the repository, their variants, and their data as files."""

import pytest
import torch
from datasets import Dataset

from hf_bidir.common.errors import InputError
from research.paper.data import data_files, removed_rows
from research.paper.experiments import GROUPS, TEXTS, VARIANTS, Experiment, mean_pooling, read_experiments
from research.paper.repeats import find_repeats


def test_every_experiment_of_the_repository_can_be_read():
    for experiment in read_experiments(list(GROUPS["all"])):
        assert experiment.learning_rates
        assert experiment.synthetic or experiment.files
        assert set(experiment.variants) <= set(VARIANTS)
        if experiment.name in set(TEXTS) - {"20news-bydate"}:  # not in the paper
            assert experiment.published["tanhmax"]["accuracy"] > 80


def test_an_unknown_experiment_is_one_error():
    with pytest.raises(InputError, match=r"unknown experiment 'sts'; choose one of: .*Did you mean"):
        read_experiments(["sts"])


def test_the_mean_variant_is_the_mean_over_words():
    scores, keep = torch.randn(2, 1, 1, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()[:, None, None]
    assert mean_pooling(scores, keep)[:, 0, 0].tolist() == [[0.25] * 4, [0.5, 0.5, 0, 0]]


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
    sampled = data_files(experiment(), news, tmp_path / "sampled", {"test": 30})
    assert len(Dataset.from_parquet(str(sampled["test"]))) == 30  # of those that are left
    assert removed_rows(sampled["test"])["test"] == 8
