"""Measures of a trained model with one attention layer."""

import copy

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_bidir.explain import load_checkpoint
from research.paper.cells import polar_separation
from research.paper.experiments import Experiment, Settings, read_experiments
from research.paper.figures import polarity_of_words
from research.paper.measures import Classifier, measure
from research.tests.paper.conftest import AMOUNT


def test_a_label_changes_no_logit(trained, files):
    _, model, tokenizer = trained
    inputs = tokenizer(Dataset.from_parquet(str(files["test"]))["text"][:20], return_tensors="pt")
    labels = torch.arange(20) % 2
    without = model(**inputs).logits
    for shuffled in (labels, labels.flip(0), 1 - labels):
        assert model(**inputs, labels=shuffled).logits.equal(without)


def test_slopes_are_those_of_the_margin_between_the_classes(trained, files):
    _, model, tokenizer = trained
    inputs = dict(tokenizer(Dataset.from_parquet(str(files["test"]))["text"][:3], return_tensors="pt"))
    found = Classifier(model, tokenizer).scores(inputs)
    difference = model.classifier.weight[1] - model.classifier.weight[0]
    values = model.rnn.attention.value(model.rnn.embeddings(inputs["input_ids"]))
    torch.testing.assert_close(found.slopes, (values @ difference).detach(), rtol=1e-4, atol=1e-5)
    logits = model(**inputs).logits
    bias = model.classifier.bias[1] - model.classifier.bias[0]
    torch.testing.assert_close(
        found.contributions.sum(1) + bias, logits[:, 1] - logits[:, 0], rtol=1e-4, atol=1e-4
    )  # a single layer with a linear readout: contributions add up to the margin


def test_oriented_coefficients_are_positive_for_positive_words_and_negative_for_negative_ones(trained, files):
    _, model, tokenizer = trained
    texts = Dataset.from_parquet(str(files["train"]))["text"][:40]
    sign, share = Classifier(model, tokenizer).orientation(texts)
    inputs = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    coefficients = sign * Classifier(model, tokenizer).scores(inputs).coefficients
    words = [tokenizer.convert_ids_to_tokens(row) for row in inputs["input_ids"]]
    means = {
        kind: np.mean([a for row, values in zip(words, coefficients.tolist(), strict=True)
                       for word, a in zip(row, values, strict=True) if word.startswith(kind)])
        for kind in ("pos", "neg")
    }  # fmt: skip
    assert means["pos"] > 0 > means["neg"]
    assert 0.5 <= share <= 1


def test_the_orientation_turns_with_the_gauge(trained, files):
    _, model, tokenizer = trained
    texts = Dataset.from_parquet(str(files["train"]))["text"][:40]
    sign, share = Classifier(model, tokenizer).orientation(texts)
    turned = copy.deepcopy(model)
    with torch.no_grad():  # the same function from coefficients of the other sign
        for layer in (turned.rnn.attention.score.key, turned.rnn.attention.value):
            layer.weight.neg_()
            layer.bias.neg_()
    assert Classifier(turned, tokenizer).orientation(texts) == (-sign, pytest.approx(share))


def test_everything_is_measured_with_a_number_per_text(trained, files):
    cell, _, _ = trained
    model, tokenizer = load_checkpoint(cell.run)
    splits = {name: Dataset.from_parquet(str(file)) for name, file in files.items()}
    human = Dataset.from_dict({"tokens": [["pos0", "word3", "neg1"]], "token_labels": [[4, 2, 0]]})
    found = measure(model.requires_grad_(False), tokenizer, splits, human, AMOUNT, polar_words=True)
    per_text = {key: values for key, values in found.items() if isinstance(values, list)}
    assert {len(values) for key, values in per_text.items() if not key.startswith(("human", "adversary"))} == {12}
    assert len(per_text["adversary"]) == 2
    assert len(per_text["human_sign_au"]) == 1
    assert found["human_positive"] == [0.5]
    assert found["human_sign_au"] == [1.0]


def test_words_have_the_polarity_that_people_gave_them(tmp_path):
    (tmp_path / "sst_trees").mkdir()
    rows = {"tokens": [["Good", "the", "bad", "odd"], ["good", "odd"]], "token_labels": [[4, 2, 0, 1], [3, 3]]}
    Dataset.from_dict(rows).to_parquet(str(tmp_path / "sst_trees/test.parquet"))
    (sst,) = read_experiments(["sst"])
    assert polarity_of_words(sst, Settings(tmp_path, tmp_path).graded(sst)) == {"good": 1, "bad": -1}
    assert polarity_of_words(sst, Settings(tmp_path).graded(sst)) == {}


def test_synthetic_words_have_the_polarity_of_their_names():
    polarity = polarity_of_words(Experiment("s", "S", {}, [1.0], synthetic="small"), None)
    assert (polarity["pos0"], polarity["neg0"]) == (1, -1)
    assert "word0" not in polarity


def test_polar_words_apart_from_neutral_ones_are_counted_in_standard_deviations():
    generator = np.random.default_rng(0)
    kinds = {"pos0": 0.5, "neg0": -0.3, "word0": 0.1}
    drawn = {word: generator.normal(mean, 0.1, 2000) for word, mean in kinds.items()}
    words = {word: [len(values), 0.0, values.sum(), (values**2).sum()] for word, values in drawn.items()}
    assert polar_separation(words) == pytest.approx({"polar_positive": 4, "polar_negative": -4}, rel=0.1)
    assert np.isnan(polar_separation({"pos0": words["pos0"]})["polar_negative"])
