"""Models without a part of their coefficients: as much positive mass as there is negative, and the weaker sign."""

import torch

from hf_bidir.checkpoints.layer_hooks import edited_coefficients, without_negatives
from hf_bidir.explain.orient import flip_heads
from hf_bidir.explain.signs import negative_variance_share
from research.conversions.measures import without_as_much_positive, without_weaker_sign
from tests.explain.test_signs import batch_of, model_of


def test_the_control_removes_as_much_positive_mass_as_there_is_negative_mass():
    model, batch = model_of(1.0), batch_of()
    seen = []

    def record(coefficients):
        seen.append(coefficients)
        return coefficients

    with edited_coefficients(model, record), without_as_much_positive(model), edited_coefficients(model, record):
        model(**batch)
    for whole, reduced in zip(seen[::2], seen[1::2], strict=True):
        positive, negative = whole.clamp_min(0), whole.clamp_max(0)
        torch.testing.assert_close(reduced.clamp_max(0), negative)
        expected = torch.minimum(-negative.sum(-1), positive.sum(-1))
        torch.testing.assert_close(positive.sum(-1) - reduced.clamp_min(0).sum(-1), expected)
        partly = (reduced.clamp_min(0) > 1e-6) & (reduced < positive - 1e-6)
        assert (partly.sum(-1) <= 1).all()


def test_the_control_takes_keys_in_an_order_that_the_seed_decides():
    model, batch = model_of(1.0), batch_of()
    found = []
    for seed in (0, 0, 1):
        with without_as_much_positive(model, seed):
            found.append(model(**batch).logits)
    torch.testing.assert_close(found[0], found[1])
    assert (found[0] - found[2]).abs().max() > 1e-4


def test_flipping_a_head_changes_nothing_without_the_weaker_sign():
    model, batch = model_of(1.0), batch_of()
    share = negative_variance_share(model, [batch])
    flipped = torch.tensor([[True, False], [False, True]])
    with without_weaker_sign(model, share):
        before = model(**batch).logits
    with without_negatives(model):
        one_sign = model(**batch).logits
    flip_heads(model, flipped)
    after = negative_variance_share(model, [batch])
    with without_weaker_sign(model, after):
        torch.testing.assert_close(model(**batch).logits, before)
    with without_negatives(model):
        assert (model(**batch).logits - one_sign).abs().max() > 1e-3


def test_without_the_weaker_sign_every_head_has_one_sign():
    model, batch = model_of(1.0), batch_of()
    share, seen = negative_variance_share(model, [batch]), []

    def record(coefficients):
        seen.append(coefficients)
        return coefficients

    with without_weaker_sign(model, share), edited_coefficients(model, record):
        model(**batch)
    for layer, coefficients in enumerate(seen):
        sign = torch.where(share[layer] > 0.5, -1, 1)[:, None, None]
        assert (sign * coefficients >= 0).all()
        assert coefficients.abs().max() > 0
