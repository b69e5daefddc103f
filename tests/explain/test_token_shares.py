"""ALTI: the share of each token in the output of attention."""

import pytest
import torch

from hf_bidir.explain import ForwardCache, token_shares
from hf_bidir.explain.forward import record_coefficients
from tests.explain.conftest import PICTURES, bert, family, images, inputs_of, sentences


def shares_in_loops(part, whole):
    """Ferrando et al. 2022, equations 9 and 10: `part(query, key)` is a vector, `whole[query]` contains all of them."""
    length = len(whole)
    shares = torch.zeros(length, length)
    for query in range(length):
        for key in range(length):
            without = whole[query] - part(query, key)
            shares[query, key] = (whole[query].abs().sum() - without.abs().sum()).clamp_min(0)
    return shares / shares.sum(-1, keepdim=True)


def transformed(coefficients, values, weight):
    """The vector that a key adds to a query, from values and a weight `[tokens or hidden, heads * dim]`."""
    heads = len(coefficients)
    values, weight = values.unflatten(-1, (heads, -1)), weight.unflatten(-1, (heads, -1))
    return lambda query, key: torch.einsum("h,hd,ohd->o", coefficients[:, query, key], values[key], weight)


@torch.no_grad()
def test_shares_after_a_norm_are_those_of_every_transformed_token():
    model, inputs, seen = bert(), sentences(), {}
    layer = model.bert.encoder.layer[-1].attention
    with layer.register_forward_hook(lambda module, args, output: seen.update(x=args[0][0], y=output[0][0])):
        coefficients = record_coefficients(model, inputs)[1][-1][0]
    x, norm, dense = seen["x"], layer.output.LayerNorm, layer.output.dense
    added = transformed(coefficients, layer.self.value(x), dense.weight)
    context = sum(torch.stack([added(query, key) for query in range(6)]) for key in range(6))
    deviation = (context + dense.bias + x).std(-1, correction=0)

    def part(query, key):
        vector = added(query, key) + x[query] * (query == key)
        return norm.weight * (vector - vector.mean()) / deviation[query]

    # values have a bias, which the coefficients weigh, too
    expected = shares_in_loops(part, seen["y"])
    torch.testing.assert_close(token_shares(ForwardCache(model, inputs))[-1][0], expected)


@torch.no_grad()
def test_shares_before_a_norm_are_those_of_the_sum():
    model, seen = family("LlamaForSequenceClassification"), {}
    inputs, layer = inputs_of(model), model.model.layers[1]
    layer.input_layernorm.register_forward_hook(
        lambda module, args, output: seen.update(x=args[0][0], normed=output[0])
    )
    layer.post_attention_layernorm.register_forward_hook(lambda module, args, out: seen.update(total=args[0][0]))
    coefficients = record_coefficients(model, inputs)[1][1][0]
    attention = layer.self_attn
    values = attention.v_proj(seen["normed"]).unflatten(-1, (2, -1)).repeat_interleave(2, 1).flatten(1)
    added = transformed(coefficients, values, attention.o_proj.weight)
    expected = shares_in_loops(lambda query, key: added(query, key) + seen["x"][query] * (query == key), seen["total"])
    torch.testing.assert_close(token_shares(ForwardCache(model, inputs))[1][0], expected)


@pytest.mark.parametrize("name", ["DistilBert", "Albert"])  # one layer in several runs
def test_padding_has_no_share(name):
    model = family(f"{name}ForSequenceClassification")
    layers = token_shares(ForwardCache(model, inputs_of(model)))
    assert len(layers) == 3
    for layer in layers:
        torch.testing.assert_close(layer.sum(-1), torch.ones(layer.shape[:2]))
        assert layer[1, :4, 4:].max() < 1e-6


def test_what_is_no_sum_of_attention_and_skip_connection_is_refused():
    with pytest.raises(ValueError, match=r"around the BeitAttention .* Use contributions"):
        token_shares(ForwardCache(family("BeitForImageClassification", **PICTURES), images()))
