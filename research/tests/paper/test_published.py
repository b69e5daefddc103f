"""The paper's own protocol: its faults, reproduced."""

import dataclasses
import sys

import pytest
import torch
from datasets import Dataset

from benchmarks.runs import read_runs
from research.paper import published
from research.paper.experiments import Experiment, read_experiments
from research.paper.published import (
    LENGTH,
    encode,
    evaluate_as_published,
    label_in_scores,
    positive_logits,
    published_splits,
    published_vocabulary,
    train_as_published,
)

TEXTS = [f"the the {'good' if row % 2 else 'bad'} film {row}" for row in range(60)]
RECIPE = {"sizes": [8, 4], "scale": 5, "learning_rate": 0.5}
LABELS = torch.arange(60) % 2


@pytest.fixture(autouse=True)
def few_epochs(monkeypatch):
    monkeypatch.setattr(published, "EPOCHS", 30)


def trained(activation):
    vocabulary = published_vocabulary(TEXTS)
    ids = encode(TEXTS, vocabulary)
    return train_as_published(ids, LABELS, activation, RECIPE, seed=1), ids


def test_padding_unknown_words_and_the_most_frequent_word_are_one():
    vocabulary = published_vocabulary(TEXTS, first_id=0)
    ids = encode(["the unseen"], vocabulary)
    assert vocabulary["the"] == 0
    assert ids.shape == (1, LENGTH)
    assert (ids == 0).all()


def test_with_the_label_in_the_scores_all_negative_texts_of_tanhmax_get_the_bias():
    model, ids = trained("tanhmax")
    with label_in_scores(model, LABELS):
        leaked = positive_logits(model, ids)[LABELS == 0]
    torch.testing.assert_close(leaked, model.classifier.bias.expand(30))
    assert positive_logits(model, ids)[LABELS == 0].std() > 0  # without, they do not


def test_the_evaluation_reports_both_accuracies_of_the_same_weights():
    model, ids = trained("softmax")
    found = evaluate_as_published(model, ids, LABELS)
    fair = 100 * ((positive_logits(model, ids) > 0) == LABELS.bool()).float().mean().item()
    assert abs(found["fair"] - fair) < 1e-4

    # by hand: with scores of 0 softmax is the mean of the values
    values = model.rnn.attention.value(model.rnn.embeddings(ids)).mean(1)
    negatives = model.classifier(values)[LABELS == 0, 0]
    positives = positive_logits(model, ids)[LABELS == 1]
    right = (negatives <= 0).sum() + (positives > 0).sum()
    assert abs(found["leaked"] - 100 * right.item() / len(ids)) < 1e-4
    assert abs(found["negative_logit"] - negatives.mean().item()) < 1e-4


def test_texts_kept_for_validation_train_too_unless_the_data_came_with_them(tmp_path):
    names = ("train", "validation", "test")
    for split in names:
        rows = {"text": [f"{split} {row}" for row in range(40)], "label": [row % 2 for row in range(40)]}
        Dataset.from_dict(rows).to_parquet(str(tmp_path / f"{split}.parquet"))

    def training(*splits):
        files = {split: f"{split}.parquet" for split in splits}
        experiment = Experiment("e", "E", {}, [1.0], folder=".", files=files, class_names=["no", "yes"])
        return set(published_splits(experiment, tmp_path)["train"]["text"][:])

    assert training("train", "test") == training(*names) == {f"train {row}" for row in range(40)}


def test_the_command_trains_every_activation_and_seed_once(tmp_path, monkeypatch):
    (tmp_path / "sst2").mkdir()
    for split in ("train", "validation", "test"):
        rows = Dataset.from_dict({"text": [f"{text} of {split}" for text in TEXTS], "label": LABELS.tolist()})
        rows.to_parquet(str(tmp_path / f"sst2/{split}.parquet"))
    (sst,) = read_experiments(["sst"])
    options = dict.fromkeys(("softmax", "tanhmax"), RECIPE)
    monkeypatch.setattr(published, "read_experiments", lambda names: [dataclasses.replace(sst, as_published=options)])
    monkeypatch.setattr(published, "FILE", tmp_path / "published.csv")
    monkeypatch.setattr(published, "EPOCHS", 5)
    monkeypatch.setattr(sys, "argv", ["published", "--data-dir", str(tmp_path), "--seeds", "2"])
    published.main()
    rows = read_runs(published.FILE)
    assert rows[["activation", "seed"]].to_numpy().tolist() == [[a, s] for a in ("softmax", "tanhmax") for s in (0, 1)]
    monkeypatch.setattr(published, "train_as_published", lambda *_, **__: pytest.fail("again"))
    published.main()
