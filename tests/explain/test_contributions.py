"""Contributions: signed, per layer and head, and invariant under sign flips of heads."""

import pytest
import torch

from hf_bidir import BidirBertForMaskedLM, BidirBertModel
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.explain import edge_contributions, head_contributions
from hf_bidir.modeling.signed_layers import signed_layers
from tests.explain.conftest import asked, bert, doubled, images, sentences, vit


@pytest.mark.parametrize(("model", "inputs"), [(bert, sentences), (vit, images)], ids=["bert", "vit"])
def test_an_edge_is_the_first_order_effect_of_scaling_its_coefficient(model, inputs):
    model, inputs = model().double(), doubled(inputs())
    layer, head, query, key, step = 1, 1, 2, 3, 1e-4

    def scaled(factor):
        def edit(coefficients):
            scaling = torch.ones_like(coefficients)
            scaling[:, head, query, key] = factor
            return coefficients * scaling

        with torch.no_grad(), edited_coefficients(signed_layers(model)[layer], edit):
            return model(**inputs).logits[:, 1]

    slope = (scaled(1 + step) - scaled(1 - step)) / (2 * step)
    edges = asked(edge_contributions, model, inputs, target=1)
    torch.testing.assert_close(edges[layer][:, head, query, key], slope, atol=1e-8, rtol=1e-4)
    assert slope.abs().max() > 1e-6
    by_head = asked(head_contributions, model, inputs, target=1)
    torch.testing.assert_close(by_head[:, layer], edges[layer].sum(2))


def test_the_default_target_is_the_predicted_class_and_names_are_those_of_the_config():
    model, inputs = bert(id2label={0: "against", 1: "for"}, label2id={"against": 0, "for": 1}), sentences()
    predicted = model(**inputs).logits.argmax(-1)
    for target, same in (("for", 1), (None, predicted.int()), (None, predicted.tolist())):
        scores = [asked(head_contributions, model, inputs, chosen) for chosen in (target, same)]
        torch.testing.assert_close(*scores)


def test_frozen_weights_training_mode_no_grad_and_inference_mode_change_nothing():
    model, inputs = bert(), sentences()
    expected = asked(head_contributions, model, inputs)
    model.requires_grad_(False).train()
    with torch.no_grad():
        torch.testing.assert_close(asked(head_contributions, model, inputs), expected)
    with torch.inference_mode():
        torch.testing.assert_close(asked(head_contributions, model, {k: v + 0 for k, v in inputs.items()}), expected)
    assert model.training


@pytest.mark.parametrize(
    ("head", "options", "named"),
    [
        ({}, {"target": 2}, r"class 2 does not exist; choose one of \['LABEL_0', 'LABEL_1'\]"),
        ({}, {"position": 1}, "leave out position"),
        ({"head": BidirBertForMaskedLM}, {"position": 6}, "not padding, from 0 to 5; got 6"),
        ({"head": BidirBertModel}, {"target": 1}, "got target 1"),
        ({"head": BidirBertModel}, {"instead_of": 1}, "got instead_of 1"),
    ],
)
def test_an_output_that_the_model_does_not_have_is_one_error_that_names_it(head, options, named):
    with pytest.raises(ValueError, match=named):
        asked(head_contributions, bert(**head), sentences(), **options)
