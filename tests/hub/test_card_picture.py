"""The explained example of a card."""

import pytest
from matplotlib.image import imread

from hf_bidir import signed
from hf_bidir.finetune.record import PICTURE
from hf_bidir.hub.card_picture import draw_example
from tests.tiny_models import stock_model, word_tokenizer


def test_a_text_of_the_validation_split_is_explained_by_the_saved_checkpoint(tmp_path):
    signed(stock_model("bert")).save_pretrained(tmp_path)
    tokenizer = word_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    draw_example(tmp_path, {"input_ids": tokenizer("this film is good")["input_ids"]})
    assert imread(tmp_path / PICTURE).std() > 0


@pytest.mark.parametrize("example", [{"input_ids": [1, 2]}, {"input_ids": None}, {}])
def test_a_failure_is_a_warning(tmp_path, caplog, example):
    signed(stock_model("bert")).save_pretrained(tmp_path)  # without a tokenizer
    draw_example(tmp_path, example)
    assert "The card has no explained example" in caplog.text
    assert not (tmp_path / PICTURE).exists()
