"""The attention function of signed layers, and the view of the config through which a layer finds it."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from hf_bidir import BidirLlamaConfig, signed, tanhmax
from hf_bidir.modeling import attention
from hf_bidir.modeling.signed_layers import (
    UNSUPPORTED,
    SignedConfig,
    signed_attention,
    signed_layers,
)
from tests.tiny_models import stock_model

BATCH, HEADS, LENGTH, SIZE = 2, 4, 5, 8


def layer(mass=1.0, backend="sdpa", **fields):
    """A signed layer that has nothing but its config."""
    config = BidirLlamaConfig(attn_negative_mass=mass, **fields)
    config._attn_implementation = backend
    module = nn.Module().eval()
    module.config = module.signed_view = SignedConfig(config, config, 0, 1, UNSUPPORTED)
    module.is_causal = False
    return module


def tensors(key_heads=HEADS):
    generator = torch.Generator().manual_seed(0)
    sizes = (HEADS, key_heads, key_heads)
    return [torch.randn(BATCH, heads, LENGTH, SIZE, generator=generator) for heads in sizes]


def scores_of(query, key):
    return query @ key.mT / math.sqrt(SIZE)


def attended(coefficients, value):
    return (coefficients @ value).transpose(1, 2)


BIAS = torch.randn(1, HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("argument", ["attention_mask", "position_bias"])
def test_a_bias_is_added_to_the_scores(argument, backend):
    query, key, value = tensors()
    for mass, activation in ((0.0, lambda s: s.softmax(-1)), (1.0, tanhmax)):
        context, _ = signed_attention(layer(mass, backend), query, key, value, **{argument: BIAS})
        torch.testing.assert_close(context, attended(activation(scores_of(query, key) + BIAS), value))


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_a_mask_of_zeros_gets_its_gradient(backend):
    mask = torch.zeros(BATCH, 1, LENGTH, LENGTH, requires_grad=True)
    context, _ = signed_attention(layer(backend=backend), *tensors(), mask)
    (gradient,) = torch.autograd.grad(context.square().sum(), mask)
    assert gradient.norm() > 0


DROPPED = torch.arange(LENGTH) >= 3


@pytest.mark.parametrize(
    "given",
    [
        {"attention_mask": BIAS.masked_fill(DROPPED, torch.finfo(torch.float32).min)},
        {"attention_mask": BIAS - 100.0 * DROPPED},  # as Swin masks
        {"position_bias": BIAS - 100.0 * DROPPED},
        {"attention_mask": ~DROPPED[None, None, None], "position_bias": BIAS},
    ],
)
def test_masks_and_biases_in_one_tensor_or_two_are_told_apart(given):
    query, key, value = tensors()
    context, coefficients = signed_attention(layer(backend="eager"), query, key, value, **given)
    expected = tanhmax((scores_of(query, key) + BIAS)[..., :3])
    torch.testing.assert_close(coefficients[..., :3], expected)
    assert (coefficients[..., 3:] == 0).all()
    torch.testing.assert_close(context, attended(expected, value[:, :, :3]))


def test_a_soft_cap_bounds_the_scores_before_a_bias_is_added():
    query, key, value = tensors()
    context, _ = signed_attention(layer(), 9 * query, key, value, BIAS, softcap=2.0)
    scores = 2 * (scores_of(9 * query, key) / 2).tanh() + BIAS
    torch.testing.assert_close(context, attended(tanhmax(scores), value))


@pytest.mark.parametrize("mass", [0.0, 1.0])
def test_a_sink_takes_part_in_the_normaliser_alone(mass):
    query, key, value = tensors()
    sinks = torch.tensor([-1.0, 0.0, 1.0, 3.0])
    context, _ = signed_attention(layer(mass), query, key, value, s_aux=sinks)
    scores, sink = scores_of(query, key), sinks.view(1, -1, 1, 1)
    numerator, term = (torch.sinh, torch.cosh) if mass else (torch.exp, torch.exp)
    expected = numerator(scores) / (term(scores).sum(-1, keepdim=True) + term(sink))
    torch.testing.assert_close(context, attended(expected, value))


@pytest.mark.parametrize(
    ("backend", "argument", "queries", "causal"),
    [
        ("sdpa", True, LENGTH, True),
        ("sdpa", False, LENGTH, False),
        ("sdpa", None, LENGTH, False),  # what the layer says
        ("sdpa", True, 1, False),  # one query over a cache sees everything
        ("eager", True, LENGTH, False),  # eager models always have a mask where one is needed
    ],
)
def test_no_mask_means_a_causal_one_where_transformers_defines_it_so(backend, argument, queries, causal):
    query, key, value = tensors()
    query = query[:, :, :queries]
    context, _ = signed_attention(layer(backend=backend), query, key, value, is_causal=argument)
    scores = scores_of(query, key)
    keep = torch.ones(queries, LENGTH, dtype=torch.bool)
    torch.testing.assert_close(context, attended(tanhmax(scores, keep.tril() if causal else keep), value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seq_lens_q": torch.zeros(1)}, "cu_seq_lens_q"),
        ({"indices": torch.zeros(1)}, "indices"),
        ({"attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.bool)}, r"got \(2, 5\)"),
    ],
)
def test_what_nothing_computes_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        signed_attention(layer(), *tensors(), **change)


def test_arguments_that_change_nothing_are_ignored_none_is_no_argument_and_one_query_serves_every_example():
    query, key, value = tensors()
    context, _ = signed_attention(layer(), query[:1], key, value, use_cache=True, sliding_window=3, indices=None)
    torch.testing.assert_close(context, attended(tanhmax(scores_of(query[:1], key)), value))


@pytest.mark.parametrize(
    ("backend", "given", "named"),
    [
        ("sdpa", {"position_bias": BIAS, "softcap": 30.0}, "bias, softcap"),
        ("fused", {"position_bias": BIAS, "s_aux": torch.zeros(HEADS)}, "sinks"),
    ],
)
def test_what_only_the_eager_path_computes_uses_it_and_is_logged(backend, given, named, caplog):
    attention._log_choice.cache_clear()
    context, coefficients = signed_attention(layer(backend=backend), *tensors(), **given)
    torch.testing.assert_close(context, signed_attention(layer(backend="eager"), *tensors(), **given)[0])
    assert coefficients is None  # the call does not ask for them
    assert f"uses the eager implementation (only it computes {named})" in caplog.text


def test_the_view_reads_and_writes_the_stock_config_and_survives_copies():
    model = signed(stock_model("llama"), 0.5)
    view = signed_layers(model)[0].config
    assert view.hidden_size == model.config.hidden_size
    view.hidden_act = "relu"
    assert model.config.hidden_act == "relu"
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        view = signed_layers(copied)[0].config
        assert view.bidir is view.stock is copied.config is not model.config
        assert view._attn_implementation.endswith(":sdpa")
