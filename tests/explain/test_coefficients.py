"""The coefficients of one head that are shown beside the scores of a method."""

import pytest
import torch
from transformers import ViTImageProcessor

from hf_bidir.checkpoints.layer_hooks import observed_layers
from hf_bidir.explain import ForwardCache, Request, explain, read_text
from hf_bidir.explain.coefficients import head_of_query, strongest_head
from hf_bidir.explain.forward import record_coefficients
from hf_bidir.modeling.signed_layers import signed_layers
from tests.explain.conftest import bert, family, picture, pooling, tokenizer

TEXT = "a unbelievably good film !"


def text():
    return read_text(tokenizer(), TEXT, 12)


@torch.no_grad()
def recorded(model, inputs):
    return record_coefficients(model, inputs)[1]


@pytest.mark.parametrize(
    ("head", "row", "query"),
    [
        ("BertForSequenceClassification", 0, "query [CLS]"),
        ("LlamaForSequenceClassification", -1, "query [SEP]"),  # attention is causal
    ],
)
def test_the_query_is_the_position_that_the_output_is_read_from(head, row, query):
    model, example = family(head, pad_token_id=0), text()
    shown = head_of_query(ForwardCache(model, example.inputs), example, Request(head=1))
    expected = example.by_token(recorded(model, example.inputs)[-1][0, 1, row])
    torch.testing.assert_close(shown.values, expected)
    assert shown.heading == f"Coefficients of layer 2, head 1, for {query}"


def test_without_a_class_token_it_is_the_mean_over_all_patches():
    model = family("SiglipVisionModel", image_size=8, patch_size=2, vision_use_head=False)
    found = explain(
        model, ViTImageProcessor(size={"height": 8, "width": 8}), picture(), "erasure", figures=["coefficients"]
    )
    mean = recorded(model, found.example.inputs)[-1][0, found.coefficients.head].mean(0)
    torch.testing.assert_close(found.coefficients.values, mean)
    assert found.coefficients.query == "the mean over all queries"


def test_a_single_query_is_named_so():
    model, example = pooling(), text()
    shown = head_of_query(ForwardCache(model, example.inputs), example, Request())
    torch.testing.assert_close(shown.values, example.by_token(recorded(model, example.inputs)[0][0, 0, 0]))
    assert shown.query == "its only query"


@pytest.mark.parametrize("layer", [None, 1])
def test_the_head_is_the_one_whose_weighted_values_are_largest_unless_it_is_asked_for(layer):
    model, example, values = bert(), text(), []
    part = signed_layers(model)[2 if layer is None else layer]
    part.value.weight.data[8:] *= 100  # the second of two heads
    with observed_layers(part, lambda _layer, _key, value, _context: values.append(value[0])):
        rows = recorded(model, example.inputs)[2 if layer is None else layer][0, :, :1]
    assert strongest_head(rows, values[0]) == 1
    shown = head_of_query(ForwardCache(model, example.inputs), example, Request(layer=layer))
    assert (shown.layer, shown.head) == (2 if layer is None else layer, 1)
    asked = head_of_query(ForwardCache(model, example.inputs), example, Request(layer=layer, head=0))
    assert asked.head == 0


@pytest.mark.parametrize(("mass", "signs"), [(0.0, "All are positive"), (1.0, "subtracts those of blue ones")])
def test_those_of_softmax_have_no_sign(mass, signs):
    found = explain(bert(mass), tokenizer(), TEXT, figures=["coefficients"])
    assert bool((found.coefficients.values < 0).any()) == bool(mass)
    assert signs in found.coefficients.caption
