"""Counting negative coefficients, and setting them to 0."""

import pytest
import torch

from hf_bidir import register_attn_activation, tanhmax
from hf_bidir.checkpoints.layer_hooks import negative_share, observed_layers, signed_parts, without_negatives
from hf_bidir.modeling import activations
from tests.explain.conftest import bert, sentences


def shown_coefficients(model, batch):
    model.set_attn_implementation("eager")
    attentions = model(**batch, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    rows = [layer.movedim(2, 1)[batch["attention_mask"].bool()].flatten() for layer in attentions]
    return torch.cat(rows)


def test_the_share_is_that_of_the_coefficients_which_the_model_returns():
    model, batch = bert(), sentences()
    shown = shown_coefficients(model, batch)
    large = shown[shown.abs() > 0.01]
    expected = (large < 0).float().mean().item()
    assert 0.1 < expected < 0.9
    assert negative_share(model, [batch, batch], threshold=0.01) == pytest.approx(expected)
    assert negative_share(model, [batch], threshold=1.5) is None
    with without_negatives(model):  # the outer edit comes first
        assert negative_share(model, [batch]) == 0


def test_without_negatives_a_model_computes_what_its_positive_coefficients_give(monkeypatch):
    model, batch = bert(), sentences()
    monkeypatch.setattr(activations, "_ACTIVATIONS", dict(activations._ACTIVATIONS))
    register_attn_activation("positive_part", lambda scores, keep=None, dim=-1: tanhmax(scores, keep, dim).clamp_min(0))
    model.config.attn_activation = "positive_part"
    expected = model(**batch).logits
    model.config.attn_activation = "tanhmax"
    before = model(**batch).logits
    with without_negatives(model):
        torch.testing.assert_close(model(**batch).logits, expected)
    torch.testing.assert_close(model(**batch).logits, before)
    assert (before - expected).abs().max() > 1e-3


def test_the_signed_parts_of_a_layer_are_what_its_coefficients_of_either_sign_give():
    model, batch, values, parts = bert(), sentences(), [], []

    def observe(layer, key, value, context):
        values.append(value)

    with observed_layers(model, observe):
        model(**batch)
    with signed_parts(model, lambda *part: parts.append(part)):
        model(**batch)
    model.set_attn_implementation("eager")
    coefficients = model(**batch, output_attentions=True).attentions
    for (positive, negative), a, value in zip(parts, coefficients, values, strict=True):
        torch.testing.assert_close(positive, (a * (a > 0) @ value).transpose(1, 2))
        torch.testing.assert_close(negative, (a * (a < 0) @ value).transpose(1, 2))
