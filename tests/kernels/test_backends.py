"""Signed layers compute what the eager path computes where the stock model calls flash or flex attention."""

import copy

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, GptOssConfig, GptOssForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_bidir import signed
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.modeling.signed_layers import signed_layers
from tests.tiny_models import SHAPE, TEXT, inputs_of, logits_of, sliding_window_model, stock_model


@pytest.fixture(autouse=True, scope="module")
def uncompiled():
    """Block masks are made without the compiler, which takes ten seconds."""
    with torch.compiler.set_stance("force_eager"):
        yield


def using(model, backend):
    """A copy of a signed model with another backend, without the check that its package is installed."""
    model = copy.deepcopy(model)
    model.config._attn_implementation_internal = backend
    return model


def assert_logits_and_gradients_are_those_of_the_eager_path(model, family, backend):
    results = []
    for name in ("eager", backend):
        copied = using(model, name)
        logits = logits_of(copied, inputs_of(family))
        logits.square().sum().backward()
        results.append([logits, *(x.grad for x in copied.parameters() if x.grad is not None)])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    ("family", "backend"),
    [("bert", "flash_attention_2"), ("llama", "flash_attention_3"), ("llama", "flex_attention")],
)
def test_a_model_with_padding_has_the_logits_and_gradients_of_the_eager_path(family, backend):
    model = signed(stock_model(family).double(), negative_mass=[[1.0, 0.5, 0.1, 0.0], 0.7])
    assert_logits_and_gradients_are_those_of_the_eager_path(model, family, backend)


@pytest.mark.parametrize("packed_by", ["position_ids", "cu_seq_lens"])
def test_packed_examples_are_kept_apart_where_transformers_calls_flash_attention(packed_by):
    model = signed(stock_model("llama").double(), negative_mass=0.7)
    lengths = (5, 4, 2)
    ids = inputs_of("llama")["input_ids"][:1].repeat(1, 2)[:, :11] + 3
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    options = {}
    if packed_by == "cu_seq_lens":
        starts = torch.tensor([0, 5, 9, 11], dtype=torch.int32)
        options = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 5, "max_length_k": 5}
    alone = torch.cat([using(model, "eager")(part).logits for part in ids.split(lengths, 1)], 1)
    packed = using(model, "flash_attention_2")(ids, position_ids=positions, **options).logits
    torch.testing.assert_close(packed, alone)


@pytest.mark.parametrize("cache", [None, "static"])
def test_flash_attention_generates_the_tokens_of_the_eager_path_over_a_padded_cache(cache):
    model = signed(stock_model("llama"), negative_mass=0.7)
    keep = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "attention_mask": keep}
    prompt = inputs_of("llama")["input_ids"][:2, :5] + 3
    expected = using(model, "eager").generate(prompt, **options)
    got = using(model, "flash_attention_2").generate(prompt, **options, cache_implementation=cache)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention"])
def test_a_softmax_layer_calls_the_function_of_the_stock_model_and_a_signed_one_does_not(name):
    model = using(signed(stock_model("llama"), negative_mass=[0.0, 0.5]), name)
    softmax, tanhmax = (layer.config._attn_implementation for layer in signed_layers(model))
    assert softmax == name
    assert tanhmax.startswith("signed")


def sinks_model():
    torch.manual_seed(0)
    shape = SHAPE | TEXT | {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
    model = GptOssForCausalLM(GptOssConfig(**shape, sliding_window=3, experts_implementation="eager")).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


@pytest.mark.parametrize("make", [lambda: sliding_window_model(3), sinks_model], ids=["window", "sinks"])
def test_windows_and_sinks_have_the_logits_and_gradients_of_the_eager_path(make):
    model = signed(make().double(), negative_mass=0.5)
    assert_logits_and_gradients_are_those_of_the_eager_path(model, "llama", "flash_attention_2")


@pytest.mark.parametrize(("family", "backend"), [("bert", "flash_attention_2"), ("llama", "flex_attention")])
def test_what_a_kernel_does_not_compute_takes_another_exact_path(family, backend):
    model = signed(stock_model(family), negative_mass=0.7)
    inputs = inputs_of(family)
    shown, edited = [], []
    for each in (using(model, backend), using(model, "eager")):
        shown.append(each(**inputs, output_attentions=True).attentions[0][0])
        with edited_coefficients(each, lambda a: a / 2):
            edited.append(each(**inputs).logits[:, :2])
    torch.testing.assert_close(*shown)
    torch.testing.assert_close(*edited)


def test_coefficients_of_packed_examples_are_refused_by_name():
    model = using(signed(stock_model("llama")), "flash_attention_2")
    ids = torch.full((1, 6), 5)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with pytest.raises(ValueError, match=r"flash_attention_2.*packed examples"):
        model(ids, position_ids=positions, output_attentions=True)


def doubling(module, query, key, value, attention_mask, scaling=None, **options):
    """A user's attention: softmax of twice the scores."""
    scores = 2 * query @ key.mT * scaling
    coefficients = scores.masked_fill(~attention_mask, -torch.inf).softmax(-1)
    return (coefficients @ value).transpose(1, 2), None


@pytest.fixture
def doubling_is_registered():
    AttentionInterface.register("doubling", doubling)
    AttentionMaskInterface.register("doubling", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    yield
    for functions in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
        del functions._global_mapping["doubling"]


@pytest.mark.usefixtures("doubling_is_registered")
def test_a_function_of_a_user_computes_softmax_layers_and_is_neither_signed_nor_explained():
    stock = using(stock_model("bert"), "doubling")
    inputs = inputs_of("bert")
    model = signed(copy.deepcopy(stock), negative_mass=0.0)
    assert torch.equal(logits_of(model, inputs), logits_of(stock, inputs))
    with edited_coefficients(model, lambda a: a), pytest.raises(ValueError, match=r'doubling.*choose "sdpa"'):
        logits_of(model, inputs)
    model.config.attn_negative_mass = 1.0
    with pytest.raises(ValueError, match=r'doubling.*choose "sdpa"'):
        logits_of(model, inputs)
