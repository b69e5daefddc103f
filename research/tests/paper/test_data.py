"""The experiments of the repository, their variants, and their data as files."""

import gzip

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_bidir.common.errors import InputError
from research.idx import read_idx
from research.paper.data import data_files, splits_of
from research.paper.experiments import GROUPS, VARIANTS, Experiment, mean_pooling, read_experiments
from research.paper.repeats import without_repeats


def test_every_experiment_of_the_repository_can_be_read():
    for experiment in read_experiments([*GROUPS]):
        assert experiment.learning_rates
        assert experiment.synthetic or experiment.files
        assert set(experiment.variants) <= set(VARIANTS)


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


def test_labels_that_are_kept_get_new_numbers_in_their_order(news):
    splits, _ = splits_of(experiment(keep_labels=[2, 0], class_names=["two", "zero"]), news)
    assert {(row["text"], row["label"]) for row in splits["test"]} == {
        (f"test {row}", 0 if row % 4 == 2 else 1) for row in range(8, 40) if row % 2 == 0
    }


def test_evaluation_rows_that_repeat_an_earlier_split_are_removed_and_the_rest_is_sampled(news, tmp_path):
    splits, held_out = splits_of(experiment(validation_share=0.5), news)
    assert held_out
    texts = {split: rows["text"][:] for split, rows in splits.items()}
    assert {split: len(rows) for split, rows in texts.items()} == {"train": 20, "validation": 20, "test": 32}
    sampled = [data_files(experiment(rows={"test": 30}), news, tmp_path / name)["test"] for name in "ab"]
    rows = [Dataset.from_parquet(str(file))["text"][:] for file in sampled]
    assert len(rows[0]) == 30
    assert rows[0] == rows[1]


def test_data_that_are_not_on_the_hub_need_a_folder():
    with pytest.raises(InputError, match="n is not on the Hub"):
        splits_of(experiment(), None)


WORDS = [f"word{index}" for index in range(24)]


@pytest.mark.parametrize(
    ("later", "stays"),
    [
        (" ".join(WORDS[4:]) + " one more end of this text", False),  # 13 of its 18 8-grams
        (" ".join(WORDS[12:]) + " and ten other words which are not in the text before it at all", True),
        ("A  Short text", False),  # the same beginning without case and spaces
        ("Another short text", True),
    ],
)
def test_a_text_repeats_another_by_its_beginning_or_by_half_of_its_8_grams(later, stays):
    splits = {"train": [" ".join(WORDS), "a short text"], "test": [later, "a new text"]}
    cleaned = without_repeats({name: Dataset.from_dict({"text": texts}) for name, texts in splits.items()})
    assert cleaned["train"]["text"][:] == splits["train"]
    assert cleaned["test"]["text"][:] == ([later] if stays else []) + ["a new text"]


def test_idx_files_become_images_with_labels(tmp_path):
    pixels, labels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.array([7, 9], np.uint8)
    for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (tmp_path / f"train-{kind}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    rows = read_idx(tmp_path, "train")
    assert [np.asarray(image).tolist() for image in rows["image"]] == pixels.tolist()
    assert rows["label"][:] == [7, 9]
