"""What a call wants from the layers of a model stays within that call: other threads compute as without it."""

import threading
from contextlib import suppress

import pytest
import torch

from hf_bidir import signed
from hf_bidir.checkpoints.layer_hooks import edited_coefficients, in_evaluation, observed_layers
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.modeling.signed_layers import signed_layers
from tests.tiny_models import inputs_of, logits_of, stock_model

INPUTS = inputs_of("bert")


def signed_bert():
    return signed(stock_model("bert"))


def elsewhere(model):
    """The outputs that another thread computes meanwhile."""
    found = []
    thread = threading.Thread(target=lambda: found.append(model(**INPUTS)))
    thread.start()
    thread.join()
    return found[0]


def test_a_call_with_attentions_keeps_them_while_another_thread_makes_a_plain_one():
    model, meanwhile = signed_bert(), []

    def call_once_elsewhere(*_):
        if not meanwhile:
            meanwhile.append(None)
            meanwhile[0] = elsewhere(model)

    signed_layers(model)[1].register_forward_pre_hook(call_once_elsewhere)
    outputs = model(**INPUTS, output_attentions=True)
    assert [a.shape for a in outputs.attentions] == [(3, 4, 9, 9)] * 2
    assert "attentions" not in meanwhile[0]


@pytest.mark.parametrize("where", ["in a layer", "first", "last"])
def test_a_hook_of_the_user_that_raises_or_asks_for_attentions_leaves_nothing_behind(where):
    model = signed_bert()

    def hook(module, args, kwargs):
        if where != "last":
            raise ZeroDivisionError
        return args, kwargs | {"output_attentions": True}

    hooked_module = signed_layers(model)[1] if where == "in a layer" else model
    handle = hooked_module.register_forward_pre_hook(hook, with_kwargs=True, prepend=where == "first")
    with suppress(ZeroDivisionError):
        model(**INPUTS, output_attentions=where != "last")
    handle.remove()
    assert signed_layers(model)[0](torch.zeros(1, 2, 32))[1] is None


def test_a_compiled_model_computes_without_the_changes_of_another_thread():
    model = signed_bert()
    compiled, expected = torch.compile(model, backend="eager"), logits_of(model, INPUTS)
    with edited_coefficients(model, torch.zeros_like):
        torch.testing.assert_close(elsewhere(compiled).logits, expected)
        assert not torch.allclose(logits_of(compiled, INPUTS), expected, atol=1e-2)
    torch.testing.assert_close(logits_of(compiled, INPUTS), expected)


def test_contexts_of_two_threads_may_overlap_and_graphs_run_again_afterwards():
    model, runs = signed_bert(), []

    def counting(graph, inputs):
        return lambda *call: runs.append(graph) or graph.forward(*call)

    compiled = torch.compile(lambda x: x.sin(), backend=counting)
    first, second = (in_evaluation(model) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    compiled(torch.ones(2))
    assert not runs
    second.__exit__(None, None, None)
    compiled(torch.ones(2))
    assert len(runs) == 1


def test_changes_and_observers_act_in_the_thread_that_makes_them():
    model, seen = signed_bert(), []
    expected = logits_of(model, INPUTS)
    contexts = [
        edited_coefficients(model, torch.zeros_like),
        observed_layers(model, lambda layer, *_: seen.append(layer)),
        hooked([model.get_input_embeddings()], after=lambda *call: torch.zeros_like(call[-1])),
    ]
    for context in contexts:
        with context:
            assert torch.equal(elsewhere(model).logits, expected)
            logits_of(model, INPUTS)
    assert torch.equal(logits_of(model, INPUTS), expected)
    assert seen == signed_layers(model)


def test_layers_that_gradient_checkpointing_runs_again_are_changed_as_in_the_forward_pass():
    gradients = []
    for checkpointing in (False, True):
        model = signed_bert().train()
        for dropout in (module for module in model.modules() if isinstance(module, torch.nn.Dropout)):
            dropout.p = 0.0
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        with edited_coefficients(model, lambda a: a * 0.5):
            loss = logits_of(model, INPUTS).sum()
        loss.backward()  # outside the context
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected)
