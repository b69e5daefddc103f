"""Conversions: variants, samples of data, and models without a part of their coefficients."""

from contextlib import ExitStack

import pytest
import torch
from datasets import Dataset
from pandas import DataFrame
from transformers import BertTokenizer, Trainer

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification, convert_checkpoint
from hf_bidir.checkpoints.layer_hooks import edited_coefficients, without_negatives
from hf_bidir.cli.script import parse
from research.conversions import embeddings
from research.conversions.run import (
    TASKS,
    VARIANTS,
    negative_variance_share,
    signs,
    without_as_much_positive,
    without_weaker_sign,
)
from research.runs import TRAINING
from tests.explain.conftest import bert, flip_heads, sentences
from tests.sentence_models import SENTENCES, sentence_model

WORDS = [f"w{index}" for index in range(20)]


def test_every_variant_names_options_that_the_tasks_know():
    for variant in VARIANTS.values():
        assert issubclass(variant.healer, Trainer)
        parse(TRAINING["distill"].OPTIONS, {"output_dir": "unused"} | (variant.heal or {}))
        last = {"eval_strategy": "no", "load_best_model_at_end": False}
        parse(TRAINING["bert"].OPTIONS, {"output_dir": "unused"} | last | (variant.tune or {}))


def test_samples_for_training_and_validation_share_no_row(tmp_path):
    data = TASKS["imdb"]
    (tmp_path / "imdb").mkdir()
    Dataset.from_dict({"text": list(map(str, range(6000)))}).to_parquet(str(tmp_path / "imdb/train.parquet"))
    train, validation = (data.read(name, tmp_path, tmp_path / "runs")["text"] for name in ("train", "validation"))
    assert (len(train), len(validation)) == (4000, 1000)
    assert not set(train) & set(validation)


def test_removing_a_part_of_the_coefficients_changes_the_loss(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BidirBertConfig(**shape, vocab_size=25, initializer_range=1.0)
    BidirBertForSequenceClassification(config).save_pretrained(tmp_path)
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    texts = [" ".join(WORDS[index : index + 5]) for index in range(12)]
    rows = Dataset.from_dict({"text": texts, "label": [0, 1] * 6})
    numbers = signs(tmp_path, rows, 64)
    assert 0 < numbers["negative_share"] < 1
    assert 0 < numbers["negative_variance"] < 1
    parts = ("", "_without_negatives", "_without_weaker_sign", "_without_positive_mass")
    assert all(0 <= numbers[f"accuracy{part}"] <= 1 for part in parts)
    assert len({numbers[f"loss{part}"] for part in parts}) == len(parts)


def test_encoders_are_measured_by_nearest_texts_and_by_the_order_of_cosines():
    titles = torch.eye(4)
    news = torch.nn.functional.normalize(titles + 0.3 * titles[[1, 0, 3, 2]])  # the other text of the topic is near
    topics = {"text": ["a", "b", "c", "d"], "label": [0, 0, 1, 1]}
    texts = {"news": DataFrame(topics), "train": DataFrame(topics), "test": DataFrame(topics)}
    vectors = {"titles": titles, "news": news, "train": titles, "test": news[[0, 1, 2, 0]]}
    assert embeddings.measured(vectors, texts) == pytest.approx({"found": 1, "related": 1, "same_group": 0.75})
    assert embeddings.agreement(news, 2 * news) == pytest.approx(1)
    assert embeddings.agreement(news, titles) < 0.95


def test_an_encoder_without_negative_coefficients_gives_other_embeddings(tmp_path):
    healed = convert_checkpoint(sentence_model(tmp_path)[0], tmp_path / "healed", negative_mass=1.0)
    texts = {name: DataFrame({"text": SENTENCES, "title": SENTENCES}) for name in ("news", "train", "test")}
    found = {}
    for encoder in ("healed", "positive"):
        with embeddings.opened(encoder, str(tmp_path), healed) as model:
            found[encoder] = embeddings.embedded(model, texts)
    assert found["healed"].keys() == {"news", "train", "test", "titles"}
    assert not torch.allclose(found["healed"]["news"], found["positive"]["news"], atol=1e-3)


def coefficients_of(model, batch, *contexts):
    """The coefficients of every layer inside some contexts."""
    seen = []

    def record(coefficients):
        seen.append(coefficients)
        return coefficients

    with ExitStack() as stack:
        for context in (*contexts, edited_coefficients(model, record)):
            stack.enter_context(context)
        model(**batch)
    return seen


def test_the_control_removes_as_much_positive_mass_as_there_is_negative_mass_in_an_order_by_seed():
    model, batch = bert(), sentences()
    (whole, *_), (reduced, *_), (again, *_), (other, *_) = (
        coefficients_of(model, batch, *contexts)
        for contexts in ([], *([without_as_much_positive(model, seed)] for seed in (0, 0, 1)))
    )
    positive, negative = whole.clamp_min(0), whole.clamp_max(0)
    torch.testing.assert_close(reduced.clamp_max(0), negative)
    expected = torch.minimum(-negative.sum(-1), positive.sum(-1))
    torch.testing.assert_close(positive.sum(-1) - reduced.clamp_min(0).sum(-1), expected)
    partly = (reduced.clamp_min(0) > 1e-6) & (reduced < positive - 1e-6)
    assert (partly.sum(-1) <= 1).all()
    assert reduced.equal(again)
    assert not reduced.equal(other)


def test_the_shares_of_the_variance_depend_on_the_signs_of_heads_and_not_on_padding():
    model, batch = bert(), sentences()
    share = negative_variance_share(model, [batch])
    assert not negative_variance_share(bert(0.0), [batch]).any()  # softmax
    padded = {name: torch.nn.functional.pad(x, (0, 4)) for name, x in batch.items()}
    torch.testing.assert_close(negative_variance_share(model, [padded]), share)
    flipped = torch.tensor([[True, False], [False, True], [True, True]])
    flip_heads(model, flipped)
    torch.testing.assert_close(negative_variance_share(model, [batch]), torch.where(flipped, 1 - share, share))


def test_flipping_a_head_changes_nothing_without_the_weaker_sign():
    model, batch = bert(), sentences()
    share = negative_variance_share(model, [batch])
    flipped = torch.zeros_like(share, dtype=torch.bool)
    flipped[0, 0] = flipped[-1, -1] = True
    with without_weaker_sign(model, share):
        before = model(**batch).logits
    with without_negatives(model):
        one_sign = model(**batch).logits
    flip_heads(model, flipped)
    after = negative_variance_share(model, [batch])
    with without_weaker_sign(model, after):
        torch.testing.assert_close(model(**batch).logits, before)
    with without_negatives(model):
        assert (model(**batch).logits - one_sign).abs().max() > 1e-3


def test_without_the_weaker_sign_every_head_has_one_sign():
    model, batch = bert(), sentences()
    share = negative_variance_share(model, [batch])
    for layer, coefficients in enumerate(coefficients_of(model, batch, without_weaker_sign(model, share))):
        sign = torch.where(share[layer] > 0.5, -1, 1)[:, None, None]
        assert (sign * coefficients >= 0).all()
        assert coefficients.abs().max() > 0
