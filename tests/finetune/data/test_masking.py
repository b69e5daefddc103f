"""Joint masked language modelling: masks and loss, and that nothing but the classifier is trained."""

import pytest
import torch
from torch.nn import functional as F
from transformers import DataCollatorWithPadding, TrainingArguments

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.finetune.data.masking import MASKED_WORDS, JointCollator, JointTrainer
from hf_bidir.finetune.data.tokenizer import train_wordpiece

TEXTS = ["a good film", "a bad film", "good acting in a bad film", "the plot is bad"] * 4


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece(TEXTS, vocab_size=60, max_length=12)


@pytest.fixture(scope="module")
def examples(tokenizer):
    rows = [dict(tokenizer(text, return_token_type_ids=False)) for text in TEXTS]
    return [row | {"label": index % 2} for index, row in enumerate(rows)]


def test_masked_words_stand_beside_the_classes(tokenizer, examples):
    batch = JointCollator(tokenizer, mask_share=0.5)(examples)
    original = DataCollatorWithPadding(tokenizer)([{k: v for k, v in e.items() if k != "label"} for e in examples])
    masked = batch[MASKED_WORDS] != -100
    assert batch["labels"].tolist() == [example["label"] for example in examples]
    assert (batch[MASKED_WORDS][masked] == original["input_ids"][masked]).all()
    assert (batch["input_ids"][~masked] == original["input_ids"][~masked]).all()
    assert 0.2 < masked.sum() / original["attention_mask"].sum() < 0.5  # half of the words, but not of [CLS] and [SEP]


@pytest.fixture
def trainer(tokenizer, tmp_path):
    config = BidirBertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    model = BidirBertForSequenceClassification(config)
    return JointTrainer(model=model, args=args, masked_lm_weight=0.5)


def test_the_loss_is_that_of_the_classes_plus_the_weighted_one_of_the_words(trainer, tokenizer, examples):
    batch = JointCollator(tokenizer, mask_share=0.3)(examples)
    model, words = trainer.model, batch[MASKED_WORDS].clone()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    states = model.bert(**inputs).last_hidden_state
    guessed = F.cross_entropy((states @ model.bert.embeddings.word_embeddings.weight.T).flatten(0, 1), words.flatten())
    expected = F.cross_entropy(model(**inputs).logits, batch["labels"]) + 0.5 * guessed
    torch.testing.assert_close(trainer.compute_loss(model, dict(batch)), expected)


def test_a_batch_without_masked_words_is_classified_alone(trainer, tokenizer, examples):
    batch = {"labels" if k == "label" else k: v for k, v in DataCollatorWithPadding(tokenizer)(examples).items()}
    expected = trainer.model(**batch).loss
    torch.testing.assert_close(trainer.compute_loss(trainer.model, dict(batch)), expected)
