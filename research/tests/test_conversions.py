"""Conversions: variants, samples of data, accuracy without negative coefficients, and sentence encoders."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from pandas import DataFrame
from transformers import BertTokenizer

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification, convert_checkpoint
from hf_bidir.checkpoints.layer_hooks import without_negatives
from hf_bidir.cli.script import parse
from research.conversions import embeddings
from research.conversions.run import TASKS, VARIANTS, accuracy, batches_of, signs
from research.runs import TRAINING
from tests.sentence_models import SENTENCES, sentence_model

WORDS = [f"w{index}" for index in range(20)]


def test_every_variant_and_task_names_options_that_the_scripts_know():
    last = {"output_dir": "unused", "eval_strategy": "no", "load_best_model_at_end": False}
    for chosen in (*VARIANTS.values(), *TASKS.values()):
        parse(TRAINING["distill"].OPTIONS, {"output_dir": "unused"} | (chosen.heal or {}))
    for data in TASKS.values():
        parse(TRAINING["bert"].OPTIONS, last | data.options)


def test_samples_for_training_and_validation_share_no_row(tmp_path):
    data = TASKS["imdb"]
    (tmp_path / "imdb").mkdir()
    Dataset.from_dict({"text": list(map(str, range(6000)))}).to_parquet(str(tmp_path / "imdb/train.parquet"))
    train, validation = (data.read(name, tmp_path, tmp_path / "runs")["text"] for name in ("train", "validation"))
    assert (len(train), len(validation)) == (4000, 1000)
    assert not set(train) & set(validation)


def test_accuracies_are_those_with_and_without_negative_coefficients(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BidirBertConfig(**shape, vocab_size=25, initializer_range=1.0)
    BidirBertForSequenceClassification(config).save_pretrained(tmp_path)
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    texts = [" ".join(WORDS[index : index + 3 + index % 4]) for index in range(12)]
    rows = Dataset.from_dict({"text": texts, "label": [0, 1] * 6})
    model = BidirBertForSequenceClassification.from_pretrained(tmp_path).eval()
    (batch,) = batches_of(tmp_path, rows, 64)
    labels = batch.pop("labels")
    whole = (model(**batch).logits.argmax(-1) == labels).float().mean().item()
    with without_negatives(model):
        without = (model(**batch).logits.argmax(-1) == labels).float().mean().item()
    numbers = signs(tmp_path, rows, 64)
    assert (numbers["accuracy"], numbers["accuracy_without_negatives"]) == pytest.approx((whole, without))
    assert 0 < numbers["negative_share"] < 1


def test_the_accuracy_of_a_language_model_is_that_of_the_next_tokens_without_padding():
    def next_but_one(input_ids, attention_mask):
        wrong = torch.arange(5) == 1
        return SimpleNamespace(logits=torch.nn.functional.one_hot(input_ids.roll(-1, 1) + wrong, 9))

    batch = {"input_ids": torch.arange(1, 6).expand(2, -1), "attention_mask": torch.tensor([[1] * 5, [1, 1, 0, 0, 0]])}
    assert accuracy(next_but_one, [batch]) == pytest.approx(4 / 5)


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
    vectors = {}
    for encoder in ("healed", "positive"):
        with embeddings.opened(encoder, str(tmp_path), healed) as model:
            vectors[encoder] = embeddings.embedded(model, texts)
    assert vectors["healed"].keys() == {"news", "train", "test", "titles"}
    assert not torch.allclose(vectors["healed"]["news"], vectors["positive"]["news"], atol=1e-3)
