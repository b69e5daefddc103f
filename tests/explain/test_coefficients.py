"""The coefficients of one head that may be shown beside the scores of a method."""

import pytest
import torch

from hf_bidir.explain import ForwardCache, Request, read_text
from hf_bidir.explain.coefficients import head_of_query
from hf_bidir.explain.forward import forward_pass
from hf_bidir.modeling.signed_layers import signed_layers
from tests.explain.conftest import bert, family, pooling, tokenizer

TEXT = "a unbelievably good film !"


def shown_of(model, **choices):
    example = read_text(tokenizer(), TEXT, 12)
    return head_of_query(ForwardCache(model, example.inputs), example, Request(**choices)), example


@torch.no_grad()
def recorded(model, example):
    return forward_pass(model, example.inputs)


@pytest.mark.parametrize(
    ("head", "chosen", "row", "query"),
    [
        ("BertForSequenceClassification", {}, 0, "query [CLS]"),
        ("LlamaForSequenceClassification", {}, -1, "query [SEP]"),  # attention is causal
        ("BertForMaskedLM", {"position": 3}, 3, "query unbelievably"),
    ],
)
def test_the_query_is_the_position_that_the_output_is_read_from(head, chosen, row, query):
    model = family(head, pad_token_id=0, vocab_size=40)
    shown, example = shown_of(model, head=1, **chosen)
    torch.testing.assert_close(shown.values, example.by_token(recorded(model, example).coefficients[-1][0, 1, row]))
    assert shown.heading == f"Coefficients of layer 2, head 1, for {query}"


def test_a_single_query_is_named_so():
    shown, example = shown_of(pooling())
    torch.testing.assert_close(shown.values, example.by_token(recorded(pooling(), example).coefficients[0][0, 0, 0]))
    assert shown.query == "its only query"


@pytest.mark.parametrize("layer", [None, 1])
def test_the_head_is_the_one_whose_weighted_values_are_largest_unless_it_is_asked_for(layer):
    model, index = bert(), 2 if layer is None else layer
    signed_layers(model)[index].value.weight.data[8:] *= 100  # the second of two heads
    shown, example = shown_of(model, layer=layer)
    recording = recorded(model, example)
    rows, (_, values) = recording.coefficients[index][0, :, 0].abs(), recording.values[index]
    assert (rows * values[0].norm(dim=-1)).sum(-1).argmax() == 1
    assert (shown.layer, shown.head) == (index, 1)
    assert shown_of(model, layer=layer, head=0)[0].head == 0


@pytest.mark.parametrize(("mass", "signs"), [(0.0, "All are positive"), (1.0, "subtracts those of blue ones")])
def test_those_of_softmax_have_no_sign(mass, signs):
    shown, _ = shown_of(bert(mass))
    assert bool((shown.values < 0).any()) == bool(mass)
    assert signs in shown.caption
