"""Flash and flex attention compute TanhMax by two calls, forward and backward, as the eager path does."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex
from transformers import GenerationConfig, GptOssConfig, GptOssForCausalLM
from transformers.integrations import flex_attention as stock_flex

from hf_bidir import signed
from hf_bidir.modeling import two_calls
from hf_bidir.modeling.attention import bidir_attention
from hf_bidir.modeling.attention_call import attention_call
from hf_bidir.modeling.eager_attention import eager_attention
from hf_bidir.modeling.interventions import Interventions, intervening
from hf_bidir.modeling.signed_layers import signed_layers
from hf_bidir.modeling.two_calls import TwoCalls, _flex, signed_kernel
from tests.modeling.flash_stand_in import KERNELS, flash_2, installed, kvcache_2
from tests.tiny_models import SHAPE, TEXT, VOCABULARY, inputs_of, logits_of, sliding_window_model, stock_model

FLASH = list(KERNELS)
MASSES = [1.0, 0.3, [1.0, 0.5, 0.1, 0.0]]  # per head, one of them softmax


@pytest.fixture
def flex_on_a_cpu(monkeypatch):
    """torch's flex attention computes on a CPU what it computes on a GPU, if it is not compiled."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(two_calls, "why_not", lambda *call: None)


def using(model, backend):
    """A copy of a signed model with another backend, without the check that its package is installed."""
    model = copy.deepcopy(model)
    model.config._attn_implementation_internal = backend
    return model


def states(key_heads=2, queries=7, keys=7, width=12, heads=4):
    """Query, key and value in double precision, `[batch, heads, length, width]`."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, heads, queries, width), (2, key_heads, keys, width), (2, key_heads, keys, width)
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


def gradients_agree(got, expected, inputs):
    torch.testing.assert_close(got, expected)
    grad = torch.randn(got.shape, generator=torch.Generator().manual_seed(1), dtype=got.dtype)
    for ours, theirs in zip(*(torch.autograd.grad(x, inputs, grad) for x in (got, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


def log_of(mass):
    mass = torch.tensor(mass, dtype=torch.float64)
    return mass.log() if mass.dim() else mass.log().item()


@pytest.mark.parametrize("kernels", KERNELS.values(), ids=FLASH)
def test_every_flash_kernel_computes_tanhmax_and_its_gradients(kernels):
    inputs = states()
    for mass, causal in zip(MASSES, (False, True, True), strict=True):
        kernel = signed_kernel(kernels[0], log_of(mass), None)
        got = kernel(*(x.transpose(1, 2) for x in inputs), causal=causal).transpose(1, 2)
        expected, _ = bidir_attention(*inputs, negative_mass=mass, causal=causal, implementation="eager")
        gradients_agree(got, expected, inputs)


def test_a_query_without_keys_has_the_context_zero_and_no_gradient():
    inputs, mass = states(queries=7, keys=4), MASSES[-1]  # the first three queries are before the first key
    got = signed_kernel(flash_2, log_of(mass), None)(*(x.transpose(1, 2) for x in inputs), causal=True)
    keep = (torch.arange(4) <= torch.arange(7)[:, None] - 3)[None, None]
    expected, _ = bidir_attention(*inputs, keep, negative_mass=mass, implementation="eager")
    assert not got[:, :3].any()
    gradients_agree(got.transpose(1, 2), expected, inputs)


def assert_logits_and_gradients_are_those_of_the_eager_path(model, family, backend):
    results = []
    for name in ("eager", backend):
        with installed(backend) if "flash" in backend else nullcontext():
            logits = logits_of(one := using(model, name), inputs_of(family))
            logits.square().sum().backward()
        results.append([logits, *(x.grad for x in one.parameters() if x.grad is not None)])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(("family", "backend"), [("bert", FLASH[0]), ("llama", FLASH[1]), ("llama", "flex_attention")])
def test_a_model_with_padding_has_the_logits_and_gradients_of_the_eager_path(family, backend, flex_on_a_cpu):
    model = signed(stock_model(family).double(), negative_mass=[[1.0, 0.5, 0.1, 0.0], 0.7])
    assert_logits_and_gradients_are_those_of_the_eager_path(model, family, backend)


@pytest.mark.parametrize("backend", ["sdpa", "eager", "flash_attention_2"])
def test_continuous_batching_gives_the_tokens_of_generate(backend):
    continuous = pytest.importorskip("transformers.generation.configuration_utils")
    if not hasattr(continuous, "ContinuousBatchingConfig"):
        pytest.skip("this version of transformers configures continuous batching in another way")
    model = using(signed(stock_model("llama").double(), negative_mass=0.7), backend)
    prompts = [[5, 6, 7, 8], [9, 10], [11] * 9]
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": VOCABULARY, "pad_token_id": 0}
    small = continuous.ContinuousBatchingConfig(num_blocks=16, page_size=4, max_batch_tokens=16)
    with installed():
        expected = [model.generate(torch.tensor([p]), **options)[0, len(p) :].tolist() for p in prompts]
        found = model.generate_batch(prompts, GenerationConfig(**options), continuous_batching_config=small)
    assert [found[key].generated_tokens for key in sorted(found)] == expected
    assert model.config._attn_implementation == backend


def test_a_flash_kernel_attends_to_the_pages_of_a_cache_and_to_one_new_key():
    """As transformers calls it in continuous batching on a GPU."""
    query, keys, values = (x.detach().transpose(1, 2) for x in states(queries=1, keys=6, width=8))
    pages, lengths = torch.tensor([[2, 0], [1, 3]]), torch.tensor([5, 3])  # of four keys each
    caches = [torch.zeros(4, 4, *keys.shape[2:], dtype=keys.dtype) for _ in range(2)]
    for row, length in enumerate(lengths):
        for cache, x in zip(caches, (keys, values), strict=True):
            for place in range(length):
                cache[pages[row, place // 4], place % 4] = x[row, place]
    new = [torch.stack([x[row, n] for row, n in enumerate(lengths)])[:, None] for x in (keys, values)]
    options = {"cache_seqlens": lengths, "block_table": pages, "softmax_scale": 8**-0.5, "causal": True}
    got = signed_kernel(kvcache_2, log_of(0.3), None)(query, *caches, *new, **options)
    for row, n in enumerate(lengths + 1):
        one = (query[row : row + 1], keys[row : row + 1, :n], values[row : row + 1, :n])
        expected, _ = bidir_attention(*(x.transpose(1, 2) for x in one), negative_mass=0.3, implementation="eager")
        torch.testing.assert_close(got[row : row + 1], expected.transpose(1, 2))


@pytest.mark.parametrize("given", ["position_ids", "cu_seq_lens"])
def test_packed_examples_are_kept_apart_by_a_flash_kernel(given):
    model, lengths = signed(stock_model("llama"), negative_mass=0.7), (5, 4, 2)
    ids, eager = inputs_of("llama")["input_ids"][:1].repeat(1, 2)[:, :11] + 3, using(model, "eager")
    expected = torch.cat([eager(part).logits for part in ids.split(lengths, 1)], 1)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    starts = torch.tensor([0, 5, 9, 11], dtype=torch.int32)
    lengths = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 5, "max_length_k": 5}
    with installed():
        options = lengths if given == "cu_seq_lens" else {}
        got = using(model, "flash_attention_2")(ids, position_ids=positions, **options).logits
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("cache", [None, "static"])
def test_a_flash_kernel_generates_the_tokens_of_the_eager_path_over_a_padded_cache(cache):
    model, keep = signed(stock_model("llama"), negative_mass=0.7), torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "attention_mask": keep}
    prompt = inputs_of("llama")["input_ids"][:2, :5] + 3
    expected = using(model, "eager").generate(prompt, **options)
    with installed():
        got = using(model, "flash_attention_2").generate(prompt, **options, cache_implementation=cache)
    assert torch.equal(got, expected)


def test_a_softmax_model_calls_the_function_of_the_stock_model():
    stock = using(stock_model("llama"), "flash_attention_2")
    with installed(), torch.no_grad():
        expected = logits_of(stock, inputs_of("llama"))
        assert torch.equal(logits_of(signed(stock, negative_mass=0.0), inputs_of("llama")), expected)
    assert two_calls.stock_kernel("flex_attention") is stock_flex.flex_attention_forward


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
    model, inputs = signed(stock_model(family), negative_mass=0.7), inputs_of(family)
    one, eager = using(model, backend), using(model, "eager")
    keep = torch.ones(3, 1, 1, 9, dtype=torch.bool)
    keep[:, :, :, 1] = False
    with installed():
        for change in ({}, {"edit": lambda coefficients: coefficients / 2}, {"keep": keep}):
            wanted = {} if change else {"output_attentions": True}
            outputs = []
            for each in (one, eager):
                with intervening(signed_layers(each), Interventions(**change)):
                    outputs.append(each(**inputs, **wanted))
            torch.testing.assert_close(outputs[0].logits[:, :2], outputs[1].logits[:, :2])
            if wanted:
                torch.testing.assert_close(outputs[0].attentions[0][0], outputs[1].attentions[0][0])


@pytest.mark.parametrize(("fields", "activation"), [({"attention_dropout": 0.5}, "tanhmax"), ({}, "balanced")])
def test_dropout_takes_another_exact_path_and_balanced_attention_two_calls_of_the_stock_function(fields, activation):
    model, results = signed(stock_model("llama", **fields), 0.7, attn_activation=activation), []
    for name in ("sdpa", "flash_attention_2"):
        torch.manual_seed(0)
        with installed():
            results.append(logits_of(using(model, name).train(), inputs_of("llama")))
    torch.testing.assert_close(*results)


def test_coefficients_of_packed_examples_are_refused_by_name():
    model = using(signed(stock_model("llama")), "flash_attention_2")
    ids, positions = torch.full((1, 6), 5), torch.tensor([[0, 1, 2, 0, 1, 2]])
    with installed(), pytest.raises(ValueError, match="keeps packed examples apart inside its kernel"):
        model(ids, position_ids=positions, output_attentions=True)


def test_a_flash_package_without_log_sum_exps_is_refused_in_one_line():
    def old(q, k, v, softmax_scale=None, causal=False):
        return flash_2(q, k, v, softmax_scale=softmax_scale, causal=causal)

    with pytest.raises(ValueError, match=r"old returns no log-sum-exps .*signed attention needs; use flash-attn 2.6"):
        signed_kernel(old, 0.0, None)(*(x.transpose(1, 2) for x in states()))


def test_a_kernel_without_a_backward_pass_computes_and_does_not_train():
    def inference(q, k, v, softmax_scale=None, causal=False):
        return tuple(x.detach() for x in flash_2(q, k, v, softmax_scale=softmax_scale, return_attn_probs=True)[:2])

    inputs, kernel = [x.transpose(1, 2) for x in states()], signed_kernel(inference, 0.0, None)
    with torch.no_grad():
        assert kernel(*(x.detach() for x in inputs)).any()
    with pytest.raises(ValueError, match="has no backward pass, so it cannot train"):
        kernel(*inputs)


def test_checkpointing_sees_what_the_two_calls_save():
    """Otherwise recomputation would save no memory, and offloading would give wrong gradients."""
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x.shape) or x.clone(), lambda x: x):
        inputs = [x.transpose(1, 2) for x in states(width=8)]
        context = TwoCalls.apply(lambda *x: flash_2(*x, return_attn_probs=True), *inputs, 0.0, None)
    assert seen == [*(x.shape for x in inputs), context.shape, (2, 4, 7), (2,)]


@pytest.mark.parametrize(
    ("heads", "key_heads", "softcap", "causal", "mass"),
    [(4, 2, None, False, 1.0), (4, 4, 2.0, True, 0.3), (6, 2, None, True, [1.0, 0.5, 0.1, 0.0, 1.0, 1.0])],
)
def test_flex_attention_computes_tanhmax_and_its_gradients(heads, key_heads, softcap, causal, mass, flex_on_a_cpu):
    def kept(batch, head, query, key):  # the first query of the second example has no key
        return ((key > 0) | (batch == 0)) & ((key <= query) | (not causal)) & ((query - key).abs() < 3)

    inputs, sinks = states(key_heads, width=8, heads=heads), torch.randn(heads, dtype=torch.float64)
    mask = torch_flex.create_block_mask(kept, 2, None, 7, 7, device="cpu")
    got = _flex(torch.nn.Module(), *inputs, mask, log_of(mass), sinks, softcap=softcap).transpose(1, 2)
    call = attention_call(*inputs[:2], negative_mass=mass, softcap=softcap, sinks=sinks)
    keep = torch_flex.create_mask(kept, 2, 1, 7, 7, "cpu")
    gradients_agree(got, eager_attention(*inputs, keep, call)[0], inputs)
