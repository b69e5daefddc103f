"""Measures of trained models with one attention layer, and of deep ones."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset, Features, Image, Value

from hf_bidir.finetune.data.image_data import new_image_processor
from research.paper.experiments import Experiment
from research.paper.figures import polarity_of_words
from research.paper.measures import (
    Classifier,
    deep_taus,
    gradient_times_input,
    measure,
    measure_deep,
    polar_separation,
    special_tokens,
)
from tests.explain.conftest import bert, tokenizer, vit


def test_a_label_changes_no_logit(trained, files):
    model, tokenizer = trained
    inputs = tokenizer(Dataset.from_parquet(str(files["test"]))["text"][:20], return_tensors="pt")
    labels = torch.arange(20) % 2
    without = model(**inputs).logits
    for shuffled in (labels, labels.flip(0), 1 - labels):
        assert model(**inputs, labels=shuffled).logits.equal(without)


def test_slopes_are_those_of_the_margin_between_the_classes(trained, files):
    model, tokenizer = trained
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
    model, tokenizer = trained
    texts = Dataset.from_parquet(str(files["train"]))["text"][:40]
    classifier = Classifier(model, tokenizer)
    sign, share = classifier.orientation(texts)
    words = replace(classifier, sign=sign).words(texts)
    assert words["a"][words.index.str.startswith("pos")].mean() > 0
    assert words["a"][words.index.str.startswith("neg")].mean() < 0
    assert len(words) == 40 * 12
    assert 0.5 <= share <= 1


def test_the_orientation_turns_with_the_gauge(trained, files):
    model, tokenizer = trained
    texts = Dataset.from_parquet(str(files["train"]))["text"][:40]
    sign, share = Classifier(model, tokenizer).orientation(texts)
    turned = copy.deepcopy(model)
    with torch.no_grad():  # the same function from coefficients of the other sign
        for layer in (turned.rnn.attention.score.key, turned.rnn.attention.value):
            layer.weight.neg_()
            layer.bias.neg_()
    assert Classifier(turned, tokenizer).orientation(texts) == (-sign, pytest.approx(share))


def test_input_times_gradient_is_that_of_the_logit(trained):
    model, tokenizer = trained
    inputs = dict(tokenizer(["pos0 word3 neg1", "word1 word2 neg0"], return_tensors="pt"))
    embeddings = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    logits = model(inputs_embeds=embeddings, attention_mask=inputs["attention_mask"]).logits
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), embeddings)
    expected = (gradient * embeddings).sum(-1).detach()
    torch.testing.assert_close(gradient_times_input(model, inputs, 1), expected, rtol=1e-4, atol=1e-5)


def test_everything_is_measured(trained, files):
    model, tokenizer = trained
    splits = {name: Dataset.from_parquet(str(file)) for name, file in files.items()}
    human = Dataset.from_dict({"tokens": [["pos0", "word3", "neg1"]], "token_labels": [[4, 2, 0]]})
    numbers = measure(model, tokenizer, splits, human, polar=True)
    assert numbers["human_positive"] == 0.5
    assert numbers["human_sign_au"] == 1.0
    assert numbers["tau_au_zeroing"] > 0.98  # zeroing is the contribution, up to ties
    assert numbers["tau_au_erasure"] > 0.3
    assert numbers["comprehensiveness_au"] > numbers["sufficiency_au"]
    assert 0 < numbers["permutation"] < 1
    assert numbers["polar_positive"] > 0 > numbers["polar_negative"]


def test_words_have_the_polarity_that_people_gave_them_or_that_of_their_names(tmp_path):
    rows = {"tokens": [["Good", "the", "bad", "odd"], ["good", "odd"]], "token_labels": [[4, 2, 0, 1], [3, 3]]}
    Dataset.from_dict(rows).to_parquet(str(tmp_path / "test.parquet"))
    sst = Experiment("s", "S", {}, [1.0])
    assert polarity_of_words(sst, tmp_path / "test.parquet") == {"good": 1, "bad": -1}
    assert polarity_of_words(sst, None) == {}
    polarity = polarity_of_words(Experiment("s", "S", {}, [1.0], synthetic="small"), None)
    assert (polarity["pos0"], polarity["neg0"], polarity.get("word0")) == (1, -1, None)


def test_polar_words_apart_from_neutral_ones_are_counted_in_standard_deviations():
    generator = np.random.default_rng(0)
    kinds = {"pos0": 0.5, "neg0": -0.3, "word0": 0.1}
    words = pd.concat(
        [pd.DataFrame({"a": generator.normal(mean, 0.1, 2000)}, index=[word] * 2000) for word, mean in kinds.items()]
    )
    assert polar_separation(words) == pytest.approx({"polar_positive": 4, "polar_negative": -4}, rel=0.1)


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_deep_models_are_measured_by_erasure(kind):
    if kind == "texts":
        texts = Dataset.from_dict({"text": ["a good film", "a bad film !"]})
        numbers = measure_deep(bert(), tokenizer(), texts, 10)
    else:
        model = vit()
        pixels = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), dtype=np.uint8)
        features = Features({"image": Image(), "label": Value("int64")})
        images = Dataset.from_dict({"image": list(pixels), "label": [0, 1, 0]}, features=features)
        numbers = measure_deep(model, new_image_processor(model.config.image_size), images, None)
    assert numbers["tau_contributions"] > 0.3
    assert 0 < numbers["negative_share"] < 1
    assert {"tau_|attention|", "tau_|contributions|"} <= set(numbers)


def test_the_ends_of_a_text_and_the_class_token_are_neither_words_nor_patches():
    inputs = {"input_ids": torch.zeros(2, 5), "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])}
    assert special_tokens(None, inputs, 5).tolist() == [[1, 0, 0, 0, 1], [1, 0, 1, 0, 0]]
    model = vit()
    patches = (model.config.image_size // model.config.patch_size) ** 2
    pixels = torch.zeros(2, model.config.num_channels, model.config.image_size, model.config.image_size)
    special = special_tokens(model, {"pixel_values": pixels}, patches + 1)
    assert special.tolist() == [[True] + [False] * patches] * 2


def test_opposite_scores_rank_magnitudes_alike_and_signed_effects_in_reverse():
    effect, keep = torch.tensor([[0.1, -0.4, 0.3, 0.0]]), torch.tensor([[True, True, True, False]])
    taus = deep_taus({"contributions": -2 * effect, "attention": effect.abs(), "erasure": effect}, keep)
    assert taus == {"tau_contributions": [-1], "tau_|contributions|": [1], "tau_|attention|": [1]}
