"""ALTI and value zeroing: shares of tokens in the output of attention and of whole blocks."""

import pytest
import torch

from hf_bidir.explain import alti, flip_heads, value_zeroing
from hf_bidir.explain.record import record_coefficients
from tests.explain.conftest import bert, family, images, inputs_of, sentences, vit

POST_NORM = ["RobertaForSequenceClassification", "DistilBertForSequenceClassification"]
PRE_NORM = ["GPT2ForSequenceClassification", "LlamaForSequenceClassification", "ViTForImageClassification"]


@pytest.mark.parametrize("shares", [alti, value_zeroing])
@pytest.mark.parametrize("name", [*POST_NORM, *PRE_NORM, "AlbertForSequenceClassification"])
def test_shares_of_a_query_sum_to_one_and_padding_has_none(shares, name):
    inputs = inputs_of(family(name))
    layers = shares(family(name), inputs)
    assert len(layers) == 3
    for layer in layers:
        torch.testing.assert_close(layer.sum(-1), torch.ones(layer.shape[:2]))
        assert layer.min() >= 0
    if "attention_mask" in inputs:
        assert max(layer[1, :4, 4:].max().item() for layer in layers) < 1e-6


@pytest.mark.parametrize("shares", [alti, value_zeroing])
def test_shares_do_not_change_if_heads_flip(shares):
    model, inputs = bert(), sentences()
    before = shares(model, inputs)
    flip_heads(model, torch.tensor([[True, False], [False, True], [True, True]]))
    for first, second in zip(before, shares(model, inputs), strict=True):
        torch.testing.assert_close(second, first, atol=1e-4, rtol=1e-3)


@torch.no_grad()
def test_value_zeroing_is_the_cosine_distance_to_the_block_without_the_value():
    model, inputs, blocks = vit(), images(), []
    block = model.vit.layers[-1]
    with block.register_forward_hook(lambda module, args, output: blocks.append((args[0], output))):
        model(**inputs)
    states, output = blocks[0]

    def without(token):
        """The block with the value map's output set to 0 at one token."""

        def zeroed(linear, args, values):
            values[:, token] = 0
            return values

        with block.attention.v_proj.register_forward_hook(zeroed):
            return block(states)

    distances = torch.stack([1 - torch.cosine_similarity(output, without(j), dim=-1) for j in range(17)], -1)
    torch.testing.assert_close(
        value_zeroing(model, inputs)[-1], distances / distances.sum(-1, keepdim=True), atol=1e-4, rtol=1e-3
    )


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
    torch.testing.assert_close(alti(model, inputs)[-1][0], expected / expected.sum(-1, keepdim=True))


def test_alti_refuses_what_is_no_sum_of_attention_and_skip_connection():
    with pytest.raises(ValueError, match=r"around the BeitAttention of BidirBeit.* Use value-zeroing or contributions"):
        alti(family("BeitForImageClassification"), images())


def test_value_zeroing_of_fewer_layers_is_the_beginning_of_all():
    model, inputs = bert(), sentences()
    first, *_ = value_zeroing(model, inputs)
    (alone,) = value_zeroing(model, inputs, layer=0)
    torch.testing.assert_close(alone, first)
