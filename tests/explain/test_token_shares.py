"""ALTI: the share of each token in the output of attention."""

import pytest
import torch

from hf_bidir.explain import ForwardCache, token_shares
from hf_bidir.explain.forward import record_coefficients
from tests.explain.conftest import bert, family, images, inputs_of, sentences


@pytest.mark.parametrize("name", ["DistilBert", "Llama", "Albert"])  # norms after and before, one layer in several runs
def test_shares_of_a_query_sum_to_one_and_padding_has_none(name):
    model = family(f"{name}ForSequenceClassification")
    layers = token_shares(ForwardCache(model, inputs_of(model)))
    assert len(layers) == 3
    for layer in layers:
        torch.testing.assert_close(layer.sum(-1), torch.ones(layer.shape[:2]))
        assert layer.min() >= 0
    assert max(layer[1, :4, 4:].max().item() for layer in layers) < 1e-6


@torch.no_grad()
def test_alti_of_a_post_norm_layer_is_the_share_of_every_transformed_token():
    model, inputs, seen = bert(), sentences(), {}
    layer = model.bert.encoder.layer[-1].attention
    with layer.register_forward_hook(lambda module, args, output: seen.update(x=args[0], y=output[0])):
        _, coefficients = record_coefficients(model, inputs)
    x, y, a, norm = seen["x"][0], seen["y"][0], coefficients[-1][0], layer.output.LayerNorm
    values = layer.self.value(x).unflatten(-1, (2, 8))
    weight = layer.output.dense.weight.unflatten(1, (2, 8))
    context = torch.stack([a[head] @ values[:, head] for head in range(2)], 1).flatten(1)
    whole = layer.output.dense(context) + x
    expected = torch.zeros(6, 6)
    for i in range(6):
        for j in range(6):
            part = sum(weight[:, head] @ (a[head, i, j] * values[j, head]) for head in range(2)) + (
                x[i] if i == j else 0
            )
            part = norm.weight * (part - part.mean()) / whole[i].std(correction=0)
            expected[i, j] = (y[i].abs().sum() - (y[i] - part).abs().sum()).clamp_min(0)
    torch.testing.assert_close(
        token_shares(ForwardCache(model, inputs))[-1][0], expected / expected.sum(-1, keepdim=True)
    )


def test_alti_refuses_what_is_no_sum_of_attention_and_skip_connection():
    with pytest.raises(ValueError, match=r"around the BeitAttention of BidirBeit.* Use contributions"):
        token_shares(ForwardCache(family("BeitForImageClassification"), images()))
