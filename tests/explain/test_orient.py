"""Orientation of heads: consistent signs, unchanged outputs."""

import warnings

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from hf_bidir.explain import edge_contributions, flip_heads, orient_heads
from hf_bidir.explain.record import record_coefficients
from tests.explain.conftest import bert, images, sentences, vit

BATCHES = [pytest.param(bert, sentences, id="bert"), pytest.param(vit, images, id="vit")]


def quietly(model, batches, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return orient_heads(model, batches, progress=False, **options)


def supports(model, inputs, target):
    """`|a|` and `u = ∂y/∂a` of every layer, by head."""
    with torch.no_grad():
        _, coefficients = record_coefficients(model, inputs)
    edges = edge_contributions(model, inputs, target)
    return [(a.abs(), torch.where(a == 0, 0, e / a)) for a, e in zip(coefficients, edges, strict=True)]


@pytest.mark.parametrize(("model", "inputs"), BATCHES)
def test_outputs_do_not_change(model, inputs):
    model, inputs = model(), inputs()
    flip_heads(model, torch.tensor([[True, False], [False, True], [True, True]]))
    before = model(**inputs).logits
    quietly(model, [inputs])
    torch.testing.assert_close(model(**inputs).logits, before, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("model", "inputs"), BATCHES)
def test_flipping_changes_the_sign_of_a_heads_coefficients_and_of_no_others(model, inputs):
    model, inputs = model(), inputs()
    with torch.no_grad():
        _, before = record_coefficients(model, inputs)
        flip_heads(model, torch.tensor([[False, False], [False, True], [False, False]]))
        _, after = record_coefficients(model, inputs)
    torch.testing.assert_close(after[0], before[0])
    torch.testing.assert_close(after[1][:, 0], before[1][:, 0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(after[1][:, 1], -before[1][:, 1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("model", "inputs"), BATCHES)
def test_afterwards_positive_coefficients_support_the_target_on_average(model, inputs):
    model, inputs = model(), inputs()
    quietly(model, [inputs], target=1)
    for size, support in supports(model, inputs, target=1):
        assert ((size * support).sum((0, 2, 3)) >= -1e-7).all()


def test_orientation_does_not_depend_on_earlier_flips():
    oriented, flipped = bert(), bert()
    flip_heads(flipped, torch.tensor([[True, False], [True, True], [False, True]]))
    for model in (oriented, flipped):
        quietly(model, [sentences()])
    for first, second in zip(oriented.parameters(), flipped.parameters(), strict=True):
        assert torch.equal(first, second)


def test_the_share_is_the_part_of_the_effect_that_agrees_with_the_orientation():
    model, inputs = bert(), sentences()
    share = quietly(model, [inputs], target=1)
    for layer, (size, support) in enumerate(supports(model, inputs, target=1)):
        pull = size * support
        expected = pull.clamp_min(0).sum((0, 2, 3)) / pull.abs().sum((0, 2, 3))
        torch.testing.assert_close(share[layer], expected, atol=1e-4, rtol=1e-4)
    assert share.min() >= 0.5


def test_a_head_without_a_consistent_sign_is_named_in_a_warning():
    with pytest.warns(UserWarning, match=r"no consistent sign in \d of 6 heads: layer \d head \d \(0\.\d\d\)"):
        orient_heads(bert(), [sentences()], progress=False)


def test_labels_in_a_batch_are_ignored():
    model = bert()
    assert quietly(model, [{**sentences(), "labels": torch.tensor([0, 1])}]).shape == (3, 2)


@pytest.mark.parametrize(
    ("model", "batches", "message"),
    [
        (lambda: bert(0.5), [sentences()], "outputs only where λ = 1 in every head"),
        (lambda: bert(attn_activation="softmax"), [sentences()], "outputs only where λ = 1 in every head"),
        (bert, [], "at least one batch"),
        (bert, sentences(), "expected a batch as a mapping"),
        (lambda: BertForSequenceClassification(BertConfig(num_hidden_layers=1)), [sentences()], "load_checkpoint"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(model, batches, message):
    with pytest.raises(ValueError, match=message):
        orient_heads(model(), batches, progress=False)


def test_another_odd_activation_can_be_oriented():
    assert quietly(bert(attn_activation="tanh"), [sentences()]).shape == (3, 2)


@pytest.mark.parametrize("flipped", [torch.zeros(3, 4, dtype=torch.bool), torch.zeros(3, 2)])
def test_flips_of_another_shape_or_type_are_refused_and_change_nothing(flipped):
    model = bert()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=r"expected a boolean \[layers, heads\] = \(3, 2\), got \(3, \d\)"):
        flip_heads(model, flipped)
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
