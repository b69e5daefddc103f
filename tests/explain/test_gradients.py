"""captum's attributions of tokens and patches."""

import re

import pytest
import torch

from hf_bidir import BidirRnnConfig, BidirRnnForSequenceClassification
from hf_bidir.explain import grad_cam, gradient_times_input, integrated_gradients
from tests.explain.conftest import PICTURES, bert, family, images, sentences, vit


def test_gradient_times_input_is_that_of_the_word_embeddings():
    model, inputs = bert(), sentences()
    embeddings = model.bert.embeddings.word_embeddings(inputs["input_ids"]).detach().requires_grad_()
    logits = model(inputs_embeds=embeddings, attention_mask=inputs["attention_mask"]).logits
    expected = (embeddings * torch.autograd.grad(logits[:, 1].sum(), embeddings)[0]).sum(-1)
    torch.testing.assert_close(gradient_times_input(model, inputs, target=1), expected.detach())


def test_gradient_times_input_of_an_image_is_summed_over_each_patch():
    model, inputs = vit(), images()
    pixels = inputs["pixel_values"].clone().requires_grad_()
    products = (pixels * torch.autograd.grad(model(pixels).logits[:, 1].sum(), pixels)[0]).detach()
    scores = gradient_times_input(model, inputs, target=1)
    torch.testing.assert_close(scores[:, 8], products[:, :, 2:4, 6:8].sum((1, 2, 3)))  # row 1, column 3 of four
    assert not scores[:, 0].any()
    assert not inputs["pixel_values"].requires_grad


@pytest.mark.parametrize("layer", [None, 0])
def test_grad_cam_is_the_inputs_of_the_attention_times_their_mean_gradient(layer):
    model, inputs, kept = vit(), images(), []
    block = model.vit.layers[2 if layer is None else layer]
    with block.layernorm_before.register_forward_hook(lambda *call: kept.append(call[-1])):
        y = model(**inputs).logits[:, 1].sum()
    states, gradient = kept[0][:, 1:], torch.autograd.grad(y, kept)[0][:, 1:]
    expected = (states * gradient.mean(1, keepdim=True)).sum(-1).detach()
    scores = grad_cam(model, inputs, target=1, layer=layer)
    torch.testing.assert_close(scores[:, 1:], expected)
    assert scores.min() < 0 < scores.max()


# attention called with its states by keyword, and with registers
@pytest.mark.parametrize(
    ("name", "leading"),
    [("ViTForImageClassification", 1), ("CLIPVisionModel", 1), ("Dinov2WithRegistersForImageClassification", 5)],
)
def test_grad_cam_of_an_image_depends_on_no_other_and_is_zero_before_the_patches(name, leading):
    model = family(name, **PICTURES)
    both, second = grad_cam(model, images()), grad_cam(model, {"pixel_values": images()["pixel_values"][1:]})
    assert both.shape == (2, leading + 16)
    assert not both[:, :leading].any()
    assert both[1, leading:].all()
    torch.testing.assert_close(both[1:], second)


def test_grad_cam_needs_no_trainable_weights_and_leaves_the_model_as_it_was():
    model, inputs = vit().train(), images()
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    expected = grad_cam(model, inputs)
    with torch.inference_mode():
        torch.testing.assert_close(grad_cam(model.requires_grad_(False), inputs), expected)
    assert model.training
    with pytest.raises(ValueError, match="expected a model with patches; the config of BidirBert"):
        grad_cam(bert(), sentences())
    with pytest.raises(ValueError, match="layer 3 does not exist; choose 0 to 2"):
        grad_cam(model, inputs, layer=3)
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks


@pytest.mark.parametrize(("model", "inputs"), [(bert, sentences), (vit, images)])
def test_integrated_gradients_add_up_to_the_change_from_the_baseline(model, inputs):
    model, inputs = model(), inputs()
    if "input_ids" in inputs:
        baseline = {**inputs, "input_ids": torch.zeros_like(inputs["input_ids"])}
    else:
        baseline = {"pixel_values": torch.zeros_like(inputs["pixel_values"])}
    with torch.no_grad():
        change = (model(**inputs).logits - model(**baseline).logits)[:, 1]
    scores = integrated_gradients(model, inputs, target=1, steps=100)
    torch.testing.assert_close(scores.sum(-1), change, atol=0.02, rtol=0.02)


def test_too_few_steps_are_one_logged_warning(caplog):
    integrated_gradients(bert(), sentences(), steps=1)
    (record,) = caplog.records
    expected = r"integrated-gradients: with 1 steps the scores miss the change of y by \d+ %; call .* steps=4, or"
    assert re.match(expected, record.getMessage())


@pytest.mark.parametrize("method", [gradient_times_input, integrated_gradients])
def test_recurrent_layers_run_without_cudnn_which_has_no_backward_pass_in_evaluation(method):
    config = BidirRnnConfig(vocab_size=20, hidden_size=16, embedding_size=8, encoder="lstm")
    model, used = BidirRnnForSequenceClassification(config).eval(), []
    model.rnn.encoder.register_forward_pre_hook(lambda *_: used.append(torch.backends.cudnn.enabled))
    method(model, {"input_ids": torch.tensor([[1, 2, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)})
    assert used
    assert not any(used)
    assert torch.backends.cudnn.enabled
