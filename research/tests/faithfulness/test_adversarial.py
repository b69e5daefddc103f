"""The adversary: within the tolerance, far away, and at the end of the scale where attention does not matter."""

import math

import pytest
import torch

from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from research.faithfulness import adversarial_attention, class_probabilities, jensen_shannon, total_variation
from research.tests.faithfulness.conftest import texts
from tests.explain.conftest import bert, pooling, sentences


@pytest.mark.parametrize("activation", ["tanhmax", "softmax"])
def test_the_adversary_has_the_same_prediction_and_the_reported_distance(activation):
    model, inputs = pooling(activation), texts()
    found = adversarial_attention(model, inputs)
    with edited_coefficients(model, lambda _: found.coefficients[:, None, None]):
        prediction = class_probabilities(model, inputs)
    change = total_variation(prediction, class_probabilities(model, inputs)).detach()
    torch.testing.assert_close(change, found.change, rtol=0, atol=1e-6)
    assert (change <= 0.01).all()
    own = model(**inputs, output_attentions=True).attentions[0][:, 0, 0].detach()
    torch.testing.assert_close(jensen_shannon(found.coefficients, own), found.divergence, rtol=0, atol=1e-6)
    assert (found.divergence > 0).all()


def test_where_attention_does_not_matter_the_adversary_is_almost_maximally_far():
    model, inputs = pooling("softmax"), texts()
    torch.nn.init.zeros_(model.classifier.weight)
    assert adversarial_attention(model, inputs, steps=200).divergence[0] > 0.6 * math.log(2)


def test_a_text_of_one_word_has_no_other_softmax_attention():
    inputs = {"input_ids": torch.tensor([[3, 0]]), "attention_mask": torch.tensor([[1, 0]])}
    found = adversarial_attention(pooling("softmax"), inputs, steps=5, starts=1)
    assert found.divergence.abs().max() < 1e-6
    assert found.coefficients.tolist() == [[1.0, 0.0]]


def test_weights_get_no_gradient_and_inference_mode_around_it_changes_nothing():
    model, inputs = pooling(), texts()
    with torch.inference_mode():
        found = adversarial_attention(model, inputs, steps=5, starts=1)
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(found.divergence, adversarial_attention(model, inputs, steps=5, starts=1).divergence)


def test_a_model_that_attends_from_token_to_token_is_refused():
    with pytest.raises(ValueError, match="expected a model with one attention layer and one query"):
        adversarial_attention(bert(), sentences())
