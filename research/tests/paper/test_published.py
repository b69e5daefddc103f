"""The paper's own protocol: its faults, reproduced."""

import dataclasses
import re

import pytest
import torch
from datasets import Dataset

from hf_bidir.common.errors import InputError
from research.paper import run
from research.paper.data import data_files
from research.paper.experiments import Amount, Experiment, Settings, read_experiments
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
from research.paper.run import run_paper

TEXTS = [f"the the {'good' if row % 2 else 'bad'} film {row}" for row in range(60)]
LABELS = torch.arange(60) % 2


def trained(activation):
    vocabulary = published_vocabulary(TEXTS)
    ids = encode(TEXTS, vocabulary)
    return train_as_published(ids, LABELS, activation, sizes=(8, 4), seed=1, epochs=30), ids


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


def test_a_training_that_becomes_nan_is_an_error_and_no_number():
    ids = encode(TEXTS, published_vocabulary(TEXTS))
    with pytest.raises(InputError, match=r"that of tanhmax became (nan|inf) in epoch"):
        train_as_published(ids, LABELS, "tanhmax", sizes=(8, 4), learning_rate=1e38, epochs=3)


def test_texts_kept_for_validation_train_too_unless_the_data_came_with_them(tmp_path):
    names = ("train", "validation", "test")
    for split in names:
        rows = {"text": [f"{split} {row}" for row in range(40)], "label": [row % 2 for row in range(40)]}
        Dataset.from_dict(rows).to_parquet(str(tmp_path / f"{split}.parquet"))

    def published(*splits):
        files = {split: f"{split}.parquet" for split in splits}
        one = Experiment("e", "E", {}, [1.0], folder=".", files=files, class_names=["no", "yes"])
        made = data_files(one, tmp_path, tmp_path / f"made-{len(splits)}")
        return set(published_splits(made)["train"]["text"][:])

    assert published("train", "test") == published(*names) == {f"train {row}" for row in range(40)}


def test_the_command_runs_the_papers_own_protocol_once_and_puts_it_into_the_report(tmp_path, monkeypatch):
    (tmp_path / "sst2").mkdir()
    for split in ("train", "validation", "test"):
        texts = [f"{text} of {split}" for text in TEXTS]
        rows = Dataset.from_dict({"text": texts, "label": LABELS.tolist()})
        rows.to_parquet(str(tmp_path / f"sst2/{split}.parquet"))
    (sst,) = read_experiments(["sst"])
    small = {"embedding_size": 4, "hidden_size": 4, "num_train_epochs": 1, "max_length": 8}
    sst = dataclasses.replace(
        sst,
        recipe=small,
        learning_rates=[1e-2],
        variants=["softmax"],
        as_published={name: {"sizes": [8, 4], "learning_rate": 0.5} for name in ("softmax", "tanhmax")},
    )
    monkeypatch.setattr(run, "EPOCHS", 5)
    monkeypatch.setattr(run, "read_experiments", lambda names: [sst])
    monkeypatch.setattr(Settings, "amount", Amount(texts=4, draws=2, attacked=1, training_texts=4))
    settings = Settings(tmp_path / "out", tmp_path, seeds=2, jobs=1, as_published=True)
    report = run_paper([sst], settings).read_text()
    rows = re.findall(r"^\| SST \| (softmax|tanhmax) \| (78.8|87.9) \| (.*?) \|", report, re.MULTILINE)
    assert [row[0] for row in rows] == ["softmax", "tanhmax"]
    assert all(len(row[2].split(", ")) == 2 for row in rows)  # a number per seed
    assert "5 epochs" in report
    monkeypatch.setattr("research.paper.published.train_as_published", lambda *a, **k: pytest.fail("again"))
    assert run_paper([sst], settings, resume=True).read_text() == report
