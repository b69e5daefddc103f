"""Models whose attention another mechanism signs: differential attention."""

import pytest
import torch

from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.explain import explain, head_contributions
from hf_bidir.explain.forward import forward_pass
from hf_bidir.explain.request import methods_of
from hf_bidir.modeling.signed_layers import signed_layers
from tests.explain.conftest import ROTARY, TEXTS, asked, family, inputs_of, tokenizer

DIFFERENTIAL = TEXTS | ROTARY | {"num_attention_heads": 4, "lambda_std_dev": 0.5}


def differential(negative_mass: float = 0.0):
    return family("DiffLlamaForSequenceClassification", negative_mass, **DIFFERENTIAL)


@pytest.mark.parametrize("negative_mass", [0.0, 1.0])
def test_a_layer_of_differential_attention_computes_its_signed_map_times_its_values(negative_mass):
    model, into = differential(negative_mass), []
    outputs = [layer.o_proj for layer in signed_layers(model)]
    with torch.no_grad(), hooked(outputs, before=lambda module, args, kwargs: into.append(args[0])):
        _, maps, values = forward_pass(model, inputs_of(model))
    assert all((found < -0.01).any() for found in maps)
    for layer, found, (same, value), expected in zip(signed_layers(model), maps, values, into, strict=True):
        assert same is layer
        context = layer.groupnorm((found @ value.repeat_interleave(2, 1)).transpose(1, 2))
        torch.testing.assert_close((1 - layer.lambda_init) * context.flatten(2), expected)


def test_contributions_of_a_signed_map_are_the_sum_over_the_softmax_maps_that_it_is_made_of():
    model, inputs, maps = differential(), inputs_of(differential()), []

    def leaf(coefficients):
        maps.append(coefficients if coefficients.requires_grad else coefficients.requires_grad_())
        return coefficients

    with edited_coefficients(model, leaf):
        y = model(**inputs).logits[:, 1].sum()
    parts = [(a * g).sum(2) for a, g in zip(maps, torch.autograd.grad(y, maps), strict=True)]
    halves = [part.unflatten(1, (2, -1)).sum(1) for part in parts]  # A₁ and A₂, in each of two calls per layer
    expected = torch.stack([first + second for first, second in zip(halves[::2], halves[1::2], strict=True)], 1)
    torch.testing.assert_close(asked(head_contributions, model, inputs, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reading_its_map_changes_no_output_of_differential_attention(dtype):
    model, inputs = differential().to(dtype), inputs_of(differential())
    model.set_attn_implementation("eager")
    with torch.no_grad():
        assert torch.equal(forward_pass(model, inputs).outputs.logits, model(**inputs).logits)


@pytest.mark.parametrize("method", [m for m in methods_of(differential()) if m not in ("values", "alti")])
def test_every_method_that_needs_no_output_map_explains_differential_attention(method):
    found = explain(differential(), tokenizer(), "a good film !", method, details=True)
    assert found.scores.isfinite().all()
    assert "subtracts those of blue ones" in found.coefficients.caption
