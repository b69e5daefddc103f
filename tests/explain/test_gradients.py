"""captum's attributions of tokens and patches."""

import re

import pytest
import torch

from hf_bidir.explain import ForwardCache, Request, integrated_gradients, token_scores
from hf_bidir.explain.methods import gradients
from tests.explain.conftest import asked, bert, images, pooling, sentences, vit


@pytest.mark.parametrize(("model", "inputs"), [(bert, sentences), (vit, images)])
def test_integrated_gradients_add_up_to_the_change_from_the_baseline(model, inputs):
    model, inputs = model(), inputs()
    main = model.main_input_name
    baseline = inputs | {main: torch.zeros_like(inputs[main])}  # padding, or the mean colour
    with torch.no_grad():
        change = (model(**inputs).logits - model(**baseline).logits)[:, 1]
    scores = asked(integrated_gradients, model, inputs, target=1, steps=100)
    torch.testing.assert_close(scores.sum(-1), change, atol=0.02, rtol=0.02)


def test_too_few_steps_are_a_note_of_each_row():
    cache = ForwardCache(bert(), sentences())
    integrated_gradients(cache, Request(), steps=50)
    assert not cache.notes
    integrated_gradients(cache, Request(), steps=1)
    for row in (0, 1):
        (note,) = cache.notes[row]
        assert re.search(r"with 1 steps the scores miss the change of y by \d+ %.* steps=4", note)


def test_what_limits_scores_is_logged_where_no_explanation_has_it(caplog, monkeypatch):
    monkeypatch.setattr(gradients, "TOLERATED", 0.0)
    token_scores(bert(), sentences(), "integrated-gradients")
    assert {"with 50 steps the scores miss" in record.getMessage() for record in caplog.records} == {True}


def test_recurrent_layers_run_without_cudnn_which_has_no_backward_pass_in_evaluation():
    model, used = pooling(encoder="lstm"), []
    model.rnn.encoder.register_forward_pre_hook(lambda *_: used.append(torch.backends.cudnn.enabled))
    asked(integrated_gradients, model, sentences())
    assert used
    assert not any(used)
    assert torch.backends.cudnn.enabled
