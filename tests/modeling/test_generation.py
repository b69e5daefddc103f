"""Signed decoders generate text: with caches of every kind, padding on the left, beams, sampling and assistants."""

import copy

import pytest
import torch
from transformers import StaticCache

from hf_bidir import BidirLlamaForCausalLM, signed
from tests.tiny_models import DECODERS, FAMILIES, VOCABULARY, stock_model

GREEDY = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False}


def prompts(length=5, batch=2):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=[*DECODERS, "bart"])
def model(request):
    return signed(stock_model(request.param), 0.8, attn_activation="balanced" if request.param == "gpt2" else "tanhmax")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family in (*DECODERS, "bart", "t5")])
def test_a_converted_model_has_the_logits_of_the_stock_model_in_every_padded_step_over_its_cache(family):
    stock = stock_model(family).bfloat16()
    keep = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]])
    options = GREEDY | {"attention_mask": keep, "output_logits": True, "return_dict_in_generate": True}
    converted = signed(copy.deepcopy(stock), negative_mass=0.0)
    expected, got = (model.generate(prompts(), **options) for model in (stock, converted))
    assert torch.equal(got.sequences, expected.sequences)
    assert all(map(torch.equal, got.logits, expected.logits))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_every_cache_gives_the_tokens_that_no_cache_gives(model, cache):
    expected = model.generate(prompts(), **GREEDY, use_cache=False)
    assert torch.equal(model.generate(prompts(), **GREEDY, cache_implementation=cache), expected)


def test_a_model_with_a_window_generates_the_likeliest_tokens_without_a_cache(tmp_path):
    stock = stock_model("llama")
    stock.generation_config.use_cache = True  # a saved generation config may contain this
    stock.save_pretrained(tmp_path)
    decoder = BidirLlamaForCausalLM.from_pretrained(tmp_path, attn_scope="window", attn_window=2).eval()
    decoder.generation_config.eos_token_id = None
    generated = prompts()
    for _ in range(GREEDY["max_new_tokens"]):
        likeliest = decoder(generated, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
        generated = torch.cat([generated, likeliest], dim=1)
    assert torch.equal(decoder.generate(prompts(), **GREEDY), generated)


def test_a_step_over_a_static_cache_compiles_into_one_graph():
    ids, decoder = prompts(batch=1), signed(stock_model("llama"))

    def steps(run):
        cache, logits = StaticCache(decoder.config, max_cache_len=12), []
        logits.append(decoder(ids, past_key_values=cache).logits[:, -1])
        for index in range(3):
            position = torch.tensor([[ids.shape[1] + index]])
            token = torch.full((1, 1), 7 + index)
            logits.append(run(input_ids=token, position_ids=position, past_key_values=cache).logits[:, -1])
        return torch.stack(logits)

    with torch.no_grad():
        expected = steps(decoder)
        compiled = torch.compile(decoder, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(steps(compiled), expected, rtol=1e-4, atol=1e-5)
