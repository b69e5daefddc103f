"""Reading checkpoints: tokenizers that do not fit their models."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertTokenizer

from hf_bidir import signed
from hf_bidir.checkpoints.convert import convert_checkpoint
from hf_bidir.checkpoints.kinds import check_vocabulary
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.explain import explain, load_checkpoint
from hf_bidir.finetune.models import saved_tokenizer
from tests.tiny_models import VOCABULARY, inputs_of, stock_model, word_tokenizer

TOLD = f"has tokens for which its model, with {VOCABULARY} embeddings, has none: newtok. They were added without"


def larger_tokenizer(**special) -> BertTokenizer:
    """A tokenizer with as many tokens as the tiny models have embeddings, and one more."""
    tokenizer = word_tokenizer()
    tokenizer.add_tokens([f"w{index}" for index in range(VOCABULARY - len(tokenizer))])
    tokenizer.add_special_tokens(special) if special else tokenizer.add_tokens("newtok")
    return tokenizer


@pytest.fixture
def folder(tmp_path):
    stock_model("bert").save_pretrained(tmp_path)
    larger_tokenizer().save_pretrained(tmp_path)
    return str(tmp_path)


def test_tokens_that_were_added_without_embeddings_are_named_when_a_checkpoint_is_read(folder):
    model = open_checkpoint(folder).model()
    for reading in (
        lambda: open_checkpoint(folder).processors(model),  # for exports, 8-bit weights and healing
        lambda: convert_checkpoint(folder, f"{folder}-signed"),
        lambda: load_checkpoint(folder),  # for explanations
        lambda: saved_tokenizer(folder, model.config),  # for training
    ):
        with pytest.raises(ValueError, match=TOLD):
            reading()


def test_an_explanation_in_memory_checks_the_tokenizer_as_well():
    with pytest.raises(ValueError, match=TOLD):
        explain(signed(stock_model("bert")), larger_tokenizer(), "a newtok film")


@pytest.mark.parametrize(
    ("special", "named"),
    [({"pad_token": "[NEWPAD]"}, r"\[NEWPAD\]"), ({"additional_special_tokens": ["<ent>", "</ent>"]}, "<ent>, </ent>")],
)
def test_special_tokens_need_embeddings(tmp_path, special, named):
    larger_tokenizer(**special).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"has none: {named}. They were added without"):
        check_vocabulary(AutoTokenizer.from_pretrained(tmp_path), VOCABULARY, "it")


def test_what_is_no_checkpoint_is_named(folder):
    for source in (f"{folder}/model.safetensors", f"{folder}/elsewhere", Path(folder).parent):
        with pytest.raises(FileNotFoundError, match=f"with config.json, .* {source}"):
            open_checkpoint(source)
    Path(folder, "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has no weights"):
        open_checkpoint(folder).signed_model()


def test_a_checkpoint_is_opened_by_its_config_alone_and_its_weights_are_read_when_asked_for(folder):
    checkpoint = open_checkpoint(folder)
    Path(folder, "config.json").unlink()  # it has been read
    assert not checkpoint.is_signed
    assert checkpoint.kind.task == "text-classification"
    assert checkpoint.model().config.hidden_size == checkpoint.config.hidden_size
    assert type(checkpoint.signed_model()).__name__ == "BidirBertForSequenceClassification"


def test_a_softmax_checkpoint_signed_in_memory_equals_it_to_the_bit(folder):
    checkpoint, inputs = open_checkpoint(folder), inputs_of("bert")
    assert torch.equal(checkpoint.signed_model()(**inputs).logits, checkpoint.model()(**inputs).logits)
