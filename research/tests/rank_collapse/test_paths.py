"""Paths through heads and skip connections add up to the network."""

import pytest
import torch

from hf_bidir import BidirBertConfig, BidirBertForTokenClassification
from research.rank_collapse.paths import bare_attention, path_states
from tests.explain.conftest import vit


def bare(layers=3, **options):
    torch.manual_seed(0)
    config = BidirBertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=16,
        initializer_range=0.3, **options,
    )  # fmt: skip
    return bare_attention(BidirBertForTokenClassification(config)).eval()


INPUTS = {"input_ids": torch.arange(12).view(2, 6)}


@pytest.mark.parametrize("activation", ["tanhmax", "softmax"])
def test_paths_of_all_lengths_add_up_to_the_network(activation):
    model = bare(attn_activation=activation)
    states = model.bert(**INPUTS).last_hidden_state
    torch.testing.assert_close(path_states(model, INPUTS).sum(0), states, rtol=1e-4, atol=1e-4)


def test_the_path_through_no_head_is_the_embedding():
    model = bare()
    embedded = model.bert.embeddings(**INPUTS)
    torch.testing.assert_close(path_states(model, INPUTS)[0], embedded)


def test_paths_through_one_head_are_every_head_of_every_layer_on_the_embedding():
    model = bare(layers=2)
    embedded, expected = model.bert.embeddings(**INPUTS), 0
    model.set_attn_implementation("eager")
    attentions = model(**INPUTS, output_attentions=True).attentions
    for layer, a in zip(model.bert.encoder.layer, attentions, strict=True):
        values = layer.attention.self.value(embedded).view(2, 6, 2, 8).transpose(1, 2)
        expected = expected + layer.attention.output.dense((a @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(path_states(model, INPUTS)[1], expected, rtol=1e-4, atol=1e-5)


def test_a_vit_is_refused():
    with pytest.raises(ValueError, match="expected a BERT; got BidirViT"):
        bare_attention(vit())
