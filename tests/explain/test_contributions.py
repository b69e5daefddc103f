"""Contributions: signed, per layer and head, and invariant under sign flips of heads."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from hf_bidir import BidirBertForMaskedLM, BidirBertForQuestionAnswering, BidirBertModel
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.explain import edge_contributions, head_contributions
from tests.explain.conftest import asked, bert, images, sentences, vit


@pytest.mark.parametrize(("model", "inputs"), [(bert, sentences), (vit, images)], ids=["bert", "vit"])
def test_an_edge_is_the_first_order_effect_of_scaling_its_coefficient(model, inputs):
    model, inputs = model().double(), inputs()
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    layer, head, query, key, step = 1, 1, 2, 3, 1e-4
    edges = asked(edge_contributions, model, inputs, target=1)

    def scaled(factor):
        calls = iter(range(3))

        def edit(coefficients):
            if next(calls) != layer:
                return coefficients
            scaling = torch.ones_like(coefficients)
            scaling[:, head, query, key] = factor
            return coefficients * scaling

        with torch.no_grad(), edited_coefficients(model, edit):
            return model(**inputs).logits[:, 1]

    slope = (scaled(1 + step) - scaled(1 - step)) / (2 * step)
    torch.testing.assert_close(edges[layer][:, head, query, key].double(), slope, atol=1e-8, rtol=1e-4)
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


def test_a_masked_language_model_is_explained_at_a_position():
    model, inputs = bert(head=BidirBertForMaskedLM), sentences()
    total = asked(head_contributions, model, inputs, target=7, position=2)[:, -1]

    def edit(coefficients):  # in the last layer, only the row of that position reaches the output
        calls.append(coefficients)
        return coefficients

    calls = []
    with edited_coefficients(model, edit):
        logits = model(**inputs).logits[:, 2]
        logit = (logits[:, 7] - logits.mean(-1)).sum()
    expected = calls[-1] * torch.autograd.grad(logit, calls[-1])[0]
    torch.testing.assert_close(total, expected[:, :, 2].detach())


@pytest.mark.parametrize(
    ("model", "inputs", "options", "message"),
    [
        (bert, sentences, {"target": 2}, r"target 2 does not exist; choose one of \['LABEL_0', 'LABEL_1'\]"),
        (bert, sentences, {"target": "LABEL_9"}, 'Did you mean "LABEL_'),
        (bert, lambda: {"input_ids": [[2, 5, 3]]}, {}, 'return_tensors="pt"'),
        (bert, sentences, {"position": 1}, "has one output per example; leave out position"),
        (bert, lambda: {"input_ids": torch.ones(1, 0).long()}, {}, "not empty"),
        (bert, lambda: {"input_ids": torch.ones(1, 13).long()}, {}, "truncation=True, max_length=12"),
        (lambda: bert(head=BidirBertForMaskedLM), sentences, {}, "BidirBertForMaskedLM has an output per token"),
        (
            lambda: bert(head=BidirBertForMaskedLM),
            sentences,
            {"position": 6},
            "position of a token, not padding, from 0 to 5; got 6",
        ),
        (lambda: bert(head=BidirBertModel), sentences, {"target": 1}, "has no classes; got target 1, leave it out"),
        (
            lambda: bert(head=BidirBertModel),
            sentences,
            {"instead_of": 1},
            "has no classes; got instead_of 1, leave it out",
        ),
        (lambda: bert(head=BidirBertForQuestionAnswering), sentences, {}, "Explain model.base_model, the same model"),
        (lambda: BertForSequenceClassification(BertConfig(num_hidden_layers=1)), sentences, {}, "hf_bidir.signed"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(model, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        asked(head_contributions, model(), inputs(), **options)
