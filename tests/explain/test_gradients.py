"""captum's attributions of tokens and patches."""

import re

import pytest
import torch

from hf_bidir import BidirRnnConfig, BidirRnnForSequenceClassification
from hf_bidir.explain import integrated_gradients
from tests.explain.conftest import asked, bert, images, sentences, vit


@pytest.mark.parametrize(("model", "inputs"), [(bert, sentences), (vit, images)])
def test_integrated_gradients_add_up_to_the_change_from_the_baseline(model, inputs):
    model, inputs = model(), inputs()
    if "input_ids" in inputs:
        baseline = {**inputs, "input_ids": torch.zeros_like(inputs["input_ids"])}
    else:
        baseline = {"pixel_values": torch.zeros_like(inputs["pixel_values"])}
    with torch.no_grad():
        change = (model(**inputs).logits - model(**baseline).logits)[:, 1]
    scores = asked(integrated_gradients, model, inputs, target=1, steps=100)
    torch.testing.assert_close(scores.sum(-1), change, atol=0.02, rtol=0.02)


def test_too_few_steps_are_one_logged_warning(caplog):
    asked(integrated_gradients, bert(), sentences(), steps=1)
    (record,) = caplog.records
    expected = r"integrated-gradients: with 1 steps the scores miss the change of y by \d+ %; call .* steps=4, or"
    assert re.match(expected, record.getMessage())


def test_recurrent_layers_run_without_cudnn_which_has_no_backward_pass_in_evaluation():
    config = BidirRnnConfig(vocab_size=20, hidden_size=16, embedding_size=8, encoder="lstm")
    model, used = BidirRnnForSequenceClassification(config).eval(), []
    model.rnn.encoder.register_forward_pre_hook(lambda *_: used.append(torch.backends.cudnn.enabled))
    asked(
        integrated_gradients,
        model,
        {"input_ids": torch.tensor([[1, 2, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)},
    )
    assert used
    assert not any(used)
    assert torch.backends.cudnn.enabled
