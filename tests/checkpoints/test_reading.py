"""Reading checkpoints: tokenizers that do not fit their models."""

import pytest
from transformers import BertTokenizer

from hf_bidir import signed
from hf_bidir.checkpoints.convert import signed_model
from hf_bidir.checkpoints.reading import check_vocabulary, checkpoint_processors, read_model
from hf_bidir.explain import explain, load_checkpoint, token_scores
from hf_bidir.finetune.models import saved_tokenizer
from tests.tiny_models import VOCABULARY, stock_model, word_tokenizer

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
    model = read_model(folder)
    for reading in (
        lambda: checkpoint_processors(folder, model),  # for exports, 8-bit weights and healing
        lambda: signed_model(folder),  # for conversions
        lambda: load_checkpoint(folder),  # for explanations
        lambda: saved_tokenizer(folder, model.config),  # for training
    ):
        with pytest.raises(ValueError, match=TOLD):
            reading()


def test_a_resized_model_is_read(folder):
    model = read_model(folder)
    model.resize_token_embeddings(VOCABULARY + 1)
    model.save_pretrained(folder)
    assert len(load_checkpoint(folder)[1]) == VOCABULARY + 1


def test_an_explanation_in_memory_checks_the_tokenizer_as_well():
    model, tokenizer = signed(stock_model("bert")), larger_tokenizer()
    with pytest.raises(ValueError, match=TOLD):
        explain(model, tokenizer, "a newtok film")
    with pytest.raises(ValueError, match=f"expected tokens below {VOCABULARY}, .* got {VOCABULARY}; is the tokenizer"):
        token_scores(model, dict(tokenizer("a newtok film", return_tensors="pt")))


def test_a_padding_token_needs_an_embedding_and_a_token_of_other_inputs_does_not():
    with pytest.raises(ValueError, match=r"has none: \[NEWPAD\]"):
        check_vocabulary(larger_tokenizer(pad_token="[NEWPAD]"), VOCABULARY, "it")
    check_vocabulary(larger_tokenizer(additional_special_tokens=["<image>"]), VOCABULARY, "it")  # as in Gemma 3
