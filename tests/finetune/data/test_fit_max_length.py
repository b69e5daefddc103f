"""The length of texts, where the model has few positions."""

import pytest

from hf_bidir import BidirBertConfig, BidirBertModel
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import TextDataArguments
from hf_bidir.finetune.data.text_data import fit_max_length

SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture
def model():
    return BidirBertModel(BidirBertConfig(**SHAPE, vocab_size=30, max_position_embeddings=32))


def test_the_default_length_is_lowered_to_the_positions_of_the_model(model):
    data = TextDataArguments()
    fit_max_length(data, {}, model, "some-bert")
    assert data.max_length == 32


def test_a_given_length_beyond_the_positions_is_refused(model):
    with pytest.raises(InputError, match="at most 32, the positions that some-bert has; got 64; pass --max_length 32"):
        fit_max_length(TextDataArguments(max_length=64), {"max_length": 64}, model, "some-bert")
