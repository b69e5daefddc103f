"""ALTI: the share of each token in the output of attention."""

import pytest
import torch

from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.checkpoints.projections import projections
from hf_bidir.explain import ForwardCache, token_shares
from tests.explain.conftest import PICTURES, bert, family, images, inputs_of


@torch.no_grad()
def summands(model, inputs, maps, norm):
    """What each key adds to each query in the first text, with the skip connection, `[queries, keys, hidden]`, and the
    input and the output of the norm after it, `[queries, hidden]`."""
    outputs, normed = [], []
    with (
        hooked([maps.output], after=lambda module, args, kwargs, output: outputs.append(output[0])),
        hooked([norm], after=lambda module, args, kwargs, output: normed.append((args[0][0], output[0]))),
    ):
        model(**inputs)
        for key in range(6):
            others = torch.arange(6) != key
            with edited_coefficients(maps.layer, lambda coefficients, others=others: coefficients * others):
                model(**inputs)
    total, after = normed[0]
    added = torch.stack([outputs[0] - without for without in outputs[1:]], 1)
    skipped = torch.eye(6).unsqueeze(-1) * (total - outputs[0])
    return added + skipped, total, after


def shares_of(parts, whole):
    """Ferrando et al. 2022, equations 9 and 10."""
    without = (whole.unsqueeze(1) - parts).abs().sum(-1)
    shares = (whole.abs().sum(-1, keepdim=True) - without).clamp_min(0)
    return shares / shares.sum(-1, keepdim=True)


def test_shares_before_a_norm_are_those_of_the_sum():
    model = family("LlamaForSequenceClassification")
    inputs, norm = inputs_of(model), model.model.layers[1].post_attention_layernorm
    parts, total, _ = summands(model, inputs, projections(model)[1], norm)
    torch.testing.assert_close(token_shares(ForwardCache(model, inputs))[1][0], shares_of(parts, total))


@torch.no_grad()
def test_shares_after_a_norm_are_those_of_the_normed_summands():
    model = bert()
    inputs, norm = inputs_of(model), model.bert.encoder.layer[-1].attention.output.LayerNorm
    parts, total, after = summands(model, inputs, projections(model)[-1], norm)
    centred = parts - parts.mean(-1, keepdim=True)
    normed = norm.weight * centred / total.std(-1, correction=0)[:, None, None]
    torch.testing.assert_close(token_shares(ForwardCache(model, inputs))[-1][0], shares_of(normed, after))


def test_what_is_no_sum_of_attention_and_skip_connection_is_refused():
    with pytest.raises(ValueError, match=r"around the BeitAttention .* Use contributions"):
        token_shares(ForwardCache(family("BeitForImageClassification", **PICTURES), images()))
