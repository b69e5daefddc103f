"""Balanced attention: its definition, its relation to softmax and TanhMax, and its path through softmax attention."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from transformers import AutoModelForCausalLM, BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from hf_bidir import bidir_attention, signed, tanhmax
from hf_bidir.modeling.activations import balanced
from tests.modeling.test_attention import KEEPS, context_and_gradients, projections

rows = st_numpy.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.floats(-30, 30))
masses = st.floats(0, 1)
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16, "vocab_size": 30}


@given(rows)
def test_a_negative_mass_of_zero_is_softmax(scores):
    scores = torch.from_numpy(scores)
    torch.testing.assert_close(balanced(scores, negative_mass=0.0), scores.softmax(-1), rtol=0, atol=0)


@given(rows, masses)
def test_the_coefficients_of_a_query_sum_to_one_minus_the_negative_mass(scores, mass):
    totals = balanced(torch.from_numpy(scores), negative_mass=mass).sum(-1)
    torch.testing.assert_close(totals, torch.full_like(totals, 1 - mass), rtol=0, atol=1e-12)


@given(rows, masses, st.floats(-20, 20))
def test_a_constant_added_to_all_scores_changes_nothing(scores, mass, constant):
    scores = torch.from_numpy(scores)
    shifted = balanced(scores + constant, negative_mass=mass)
    torch.testing.assert_close(shifted, balanced(scores, negative_mass=mass), rtol=0, atol=1e-12)


@given(rows)
def test_it_is_tanhmax_of_the_scores_shifted_so_that_the_coefficients_sum_to_zero(scores):
    scores = torch.from_numpy(scores)
    shift = ((-scores).logsumexp(-1, keepdim=True) - scores.logsumexp(-1, keepdim=True)) / 2
    torch.testing.assert_close(balanced(scores), tanhmax(scores + shift), rtol=0, atol=1e-12)


def test_dropped_keys_and_rows_without_keys_get_zero():
    keep = torch.tensor([[True, True, False], [False, False, False]])
    coefficients = balanced(torch.tensor([[1.0, 2.0, 3.0]] * 2), keep)
    torch.testing.assert_close(coefficients[0, :2], balanced(torch.tensor([1.0, 2.0])))
    assert not coefficients[0, 2]
    assert not coefficients[1].any()


@pytest.mark.parametrize("mass", [1.0, 0.3, (0.9, 0.0, 0.1)], ids=str)
@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS.keys())
def test_two_softmax_attentions_agree_with_the_plain_path(keep, mass):
    inputs, options = projections(), {"activation": "balanced", "negative_mass": mass}
    plain = context_and_gradients(inputs, keep, implementation="eager", **options)
    fast = context_and_gradients(inputs, keep, implementation="lift", **options)
    for expected, got in zip(plain, fast, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("band", [{"causal": True}, {"window": 3}, {"causal": True, "window": 3}], ids=str)
def test_bands_and_grouped_key_heads_agree_with_the_plain_path(band):
    query, key, value = projections(heads=4, queries=29)
    inputs, options = (query, key[:, :2], value[:, :2]), {"activation": "balanced", "negative_mass": 0.6, **band}
    plain = context_and_gradients(inputs, None, implementation="eager", **options)
    fast = context_and_gradients(inputs, None, **options)
    for expected, got in zip(plain, fast, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_dropout_acts_on_whole_coefficients():
    inputs = projections()
    with pytest.raises(ValueError, match=r"cannot apply dropout=0\.1 to balanced"):
        bidir_attention(*inputs, activation="balanced", dropout=0.1, implementation="lift")
    context, coefficients = bidir_attention(*inputs, activation="balanced", dropout=0.1)
    torch.testing.assert_close(context, coefficients @ inputs[2])


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_a_signed_bert_is_the_stock_model_at_zero_and_another_at_one(backend):
    torch.manual_seed(0)
    stock = BertModel(BertConfig(initializer_range=0.5, **SMALL), add_pooling_layer=False).eval()
    ids, mask = torch.arange(20).view(2, 10), torch.tensor([[1] * 10, [1] * 6 + [0] * 4])
    expected = stock(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    model = signed(stock, 0.0, attn_activation="balanced")
    model.set_attn_implementation(backend)
    torch.testing.assert_close(model(ids, attention_mask=mask).last_hidden_state[mask.bool()], expected)
    model.config.attn_negative_mass = 1.0
    moved = model(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    assert (moved - expected).abs().max() > 0.1


def test_a_saved_decoder_generates_the_same_text_with_and_without_a_cache(tmp_path):
    torch.manual_seed(0)
    config = LlamaConfig(initializer_range=0.5, num_key_value_heads=2, **SMALL)
    signed(LlamaForCausalLM(config), 0.8, attn_activation="balanced").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert (model.config.attn_activation, model.config.attn_negative_mass) == ("balanced", 0.8)
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    written = [model.generate(torch.tensor([[3, 1, 4, 1, 5]]), use_cache=cached, **options) for cached in (True, False)]
    assert torch.equal(*written)
