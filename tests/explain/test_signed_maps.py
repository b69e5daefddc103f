"""The signed maps of other projects' attention: differential attention, and attention functions of users."""

import pytest
import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from hf_bidir import signed, unsigned
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.explain import explain, head_contributions, token_scores
from hf_bidir.explain.forward import ForwardCache, record_coefficients, record_maps
from hf_bidir.explain.request import methods_of
from hf_bidir.modeling.signed_layers import signed_layers
from tests.explain.conftest import ROTARY, TEXTS, asked, family, inputs_of, tokenizer

DIFFERENTIAL = TEXTS | ROTARY | {"num_attention_heads": 4, "lambda_std_dev": 0.5}


def differential(head: str = "DiffLlamaForSequenceClassification", negative_mass: float = 0.0):
    return family(head, negative_mass, **DIFFERENTIAL)


@pytest.mark.parametrize("negative_mass", [0.0, 1.0])
def test_a_layer_of_differential_attention_computes_its_signed_map_times_its_values(negative_mass):
    model, into = differential(negative_mass=negative_mass), []
    outputs = [layer.o_proj for layer in signed_layers(model)]
    with torch.no_grad(), hooked(outputs, before=lambda module, args, kwargs: into.append(args[0])):
        _, maps, values = record_maps(model, inputs_of(model))
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
        assert torch.equal(record_coefficients(model, inputs)[0].logits, model(**inputs).logits)


@pytest.mark.parametrize("method", [m for m in methods_of(differential()) if m not in ("values", "alti")])
def test_every_method_that_needs_no_output_map_explains_differential_attention(method):
    assert explain(differential(), tokenizer(), "a good film !", method).scores.isfinite().all()


def test_its_coefficients_on_a_page_are_those_of_the_signed_map():
    model = differential()
    shown = explain(model, tokenizer(), "a good film !", "erasure", figures=["coefficients"]).coefficients
    found = ForwardCache(
        model, {"input_ids": tokenizer()("a good film !", return_tensors="pt")["input_ids"]}
    ).coefficients
    torch.testing.assert_close(shown.values, found[-1][0, shown.head, -1])
    assert "subtracts those of blue ones" in shown.caption


def minus_half_of_the_mean(module, query, key, value, attention_mask, scaling=None, **options):
    """An attention function of a user whose coefficients are softmax minus half of uniform attention."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = scores if attention_mask is None else scores.masked_fill(~attention_mask, -torch.inf)
    kept = torch.ones_like(scores) if attention_mask is None else attention_mask.to(scores)
    coefficients = scores.softmax(-1) - 0.5 * kept / kept.sum(-1, keepdim=True)
    return (coefficients @ value).transpose(1, 2), coefficients


def returns_no_coefficients(*args, **options):
    return minus_half_of_the_mean(*args, **options)[0], None


@pytest.fixture
def of_a_user(monkeypatch):
    """A stock model that attends with `minus_half_of_the_mean`."""
    for name, function in (("half-mean", minus_half_of_the_mean), ("silent", returns_no_coefficients)):
        monkeypatch.setitem(AttentionInterface._global_mapping, name, function)
        monkeypatch.setitem(AttentionMaskInterface._global_mapping, name, sdpa_mask)
    model = unsigned(family("BertForSequenceClassification", 0.0, vocab_size=40))
    model.set_attn_implementation("half-mean")
    return model


def test_coefficients_below_0_that_a_users_function_returns_are_explained(of_a_user):
    inputs, expected = inputs_of(of_a_user), of_a_user(**inputs_of(of_a_user)).logits
    model = signed(of_a_user, negative_mass=0)
    outputs, maps = record_coefficients(model, inputs)
    torch.testing.assert_close(outputs.logits, expected)
    assert all((found < -0.01).any() for found in maps)
    for method in ("contributions", "erasure", "rollout"):
        assert token_scores(model, inputs, method, 1).isfinite().all()


def test_a_query_that_loses_its_only_key_gets_nothing_from_a_users_function(monkeypatch):
    def plain(module, query, key, value, mask, scaling=None, **options):
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        coefficients = (query @ key.mT * scaling).masked_fill(~mask, -torch.inf).softmax(-1)
        return (coefficients @ value).transpose(1, 2), coefficients

    monkeypatch.setitem(AttentionInterface._global_mapping, "plain", plain)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "plain", sdpa_mask)
    model = family("LlamaForSequenceClassification", 0.0, num_attention_heads=4)
    expected = token_scores(model, inputs_of(model), "erasure", 1)
    model.set_attn_implementation("plain")
    torch.testing.assert_close(token_scores(model, inputs_of(model), "erasure", 1), expected, rtol=1e-4, atol=1e-5)


def test_a_users_attention_is_not_signed_in_addition(of_a_user):
    model = signed(of_a_user)
    with pytest.raises(ValueError, match=r"half-mean.*set attn_negative_mass=0 to explain it as it is"):
        model(**inputs_of(model))


def test_a_users_function_that_returns_no_coefficients_is_named(of_a_user):
    of_a_user.set_attn_implementation("silent")
    with pytest.raises(
        ValueError, match='product with the values is the context; attn_implementation="silent" returns none'
    ):
        asked(head_contributions, signed(of_a_user, negative_mass=0), inputs_of(of_a_user))
