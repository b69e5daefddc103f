"""Signed decoders generate text: with caches of every kind, padding on the left, beams, sampling and assistants."""

import copy

import pytest
import torch
from transformers import StaticCache

from hf_bidir import BidirLlamaForCausalLM, signed
from hf_bidir.modeling.signed_layers import signed_layers
from tests.tiny_models import DECODERS, FAMILIES, VOCABULARY, sliding_window_model, stock_model

GREEDY = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False}


def prompts(length=5, batch=2):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=[*DECODERS, "bart"])
def model(request):
    return signed(stock_model(request.param), 0.8, attn_activation="balanced" if request.param == "gpt2" else "tanhmax")


@pytest.fixture(params=DECODERS)
def decoder(request):
    return signed(stock_model(request.param))


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


def test_prompts_padded_on_the_left_are_continued_as_alone(decoder):
    long, short = prompts(batch=1), prompts(3, batch=1)
    batch = torch.cat([long, torch.cat([torch.zeros(1, 2, dtype=torch.long), short], 1)])
    together = decoder.generate(batch, attention_mask=(batch != 0).long(), **GREEDY)
    for row, alone in ((together[0, 5:], long), (together[1, 5:], short)):
        expected = decoder.generate(alone, attention_mask=torch.ones_like(alone), **GREEDY)
        assert torch.equal(row, expected[0, alone.shape[1] :])


def test_beams_find_a_text_that_is_at_least_as_likely_as_the_greedy_one(model):
    def likelihood(**options):
        found = model.generate(prompts(), **GREEDY | options, output_scores=True, return_dict_in_generate=True)
        beams = getattr(found, "beam_indices", None)
        return model.compute_transition_scores(found.sequences, found.scores, beams, normalize_logits=True).sum(1)

    assert (likelihood(num_beams=4) >= likelihood() - 1e-3).all()


def test_an_assistant_changes_no_token(decoder):
    prompt = prompts(batch=1)
    assistant = signed(stock_model("llama", num_hidden_layers=1), negative_mass=0.0)
    options = {"max_new_tokens": 7, "do_sample": False, "eos_token_id": None}
    expected = decoder.generate(prompt, **options)
    assert torch.equal(decoder.generate(prompt, **options, assistant_model=assistant), expected)


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


def test_a_cache_is_read_where_it_lies():
    """No tensor as large as the keys of all query heads is allocated while a token is generated."""
    decoder, seen = signed(stock_model("llama")), []
    cache = decoder(prompts(40, 1), use_cache=True).past_key_values

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            seen.extend(tuple(x.shape) for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor))
            return result

    with torch.no_grad(), Watch():
        decoder(prompts(1, 1), past_key_values=cache)
    assert not any(len(shape) == 4 and shape[1] == 4 and shape[2] >= 40 for shape in seen)


def test_a_sliding_window_is_the_same_with_and_without_a_cache():
    model = signed(sliding_window_model())
    expected = model.generate(prompts(9), **GREEDY, use_cache=False)
    assert torch.equal(model.generate(prompts(9), **GREEDY), expected)


def test_a_causal_model_without_padding_makes_no_mask(decoder):
    masks = []
    for layer in signed_layers(decoder):
        layer.register_forward_pre_hook(
            lambda _, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
        )
    decoder(prompts())
    assert masks == [None, None]
