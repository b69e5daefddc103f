"""Models with adapters, quantised weights, or something around them."""

import copy
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
from transformers import AutoModelForCausalLM, BertForSequenceClassification, BitsAndBytesConfig

from hf_bidir import BidirBertForSequenceClassification, signed
from hf_bidir.checkpoints.linear_maps import linear_maps, weight_of
from hf_bidir.explain import ForwardCache, explain, token_scores, token_shares, value_weighted
from tests.explain.conftest import bert, family, inputs_of, sentences, tokenizer
from tests.tiny_models import inputs_of as tiny_inputs
from tests.tiny_models import logits_of, stock_model

LORA = {"target_modules": "all-linear", "task_type": "SEQ_CLS", "init_lora_weights": False, "lora_alpha": 32}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RobertaForSequenceClassification", {}),
        ("GPT2ForSequenceClassification", {"fan_in_fan_out": True, "use_dora": True}),  # transposed weights
    ],
)
def test_an_adapter_is_explained_as_the_merged_model(name, options):
    torch.manual_seed(1)
    model = get_peft_model(family(name), LoraConfig(**LORA | options)).eval()
    inputs, alone = inputs_of(model.get_base_model()), copy.deepcopy(model).merge_and_unload().eval()
    for method in ("attnlrp", "contributions", "erasure", "alti"):
        expected = token_scores(alone, inputs, method)
        torch.testing.assert_close(token_scores(model, inputs, method), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rounding", [Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig])
def test_quantised_weights_are_read_as_what_they_compute(rounding):
    exact, model = bert(), bert()
    quantize_(model, rounding())
    for linear, expected in zip(linear_maps(model), map(weight_of, linear_maps(exact)), strict=True):
        assert (weight_of(linear) - expected).abs().max() < 0.01 * expected.abs().max()
    for shares in (value_weighted(ForwardCache(model, sentences())), token_shares(ForwardCache(model, sentences()))):
        assert min(layer[0].sum() for layer in shares) > 0
    for method in ("contributions", "attnlrp"):  # gradients flow through weights that multiply 8-bit numbers
        expected = token_scores(exact, sentences(), method, target=1)
        found = token_scores(model, sentences(), method, target=1)
        assert (found - expected).abs().max() < 0.2 * expected.abs().max()


def test_a_model_with_weights_on_disk_is_explained_like_one_in_memory(stock_checkpoint, tmp_path):
    places = {"bert": "disk", "dropout": "cpu", "classifier": "cpu"}
    load = BertForSequenceClassification.from_pretrained
    loaded = load(stock_checkpoint), load(stock_checkpoint, device_map=places, offload_folder=tmp_path / "disk")
    model, offloaded = (signed(made.eval(), 0.5) for made in loaded)
    for method in ("attnlrp", "integrated-gradients", "erasure", "values", "alti"):
        scores = token_scores(offloaded, sentences(), method, 1)
        torch.testing.assert_close(scores, token_scores(model, sentences(), method, 1), msg=method)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_model_loaded_by_bitsandbytes_is_explained_like_one_with_its_rounded_weights(bits, tmp_path):
    pytest.importorskip("bitsandbytes")  # in no extra: peft imports it wherever it is, and it writes a warning then
    stock_model("llama", hidden_size=64, intermediate_size=64).save_pretrained(tmp_path)
    rounding = BitsAndBytesConfig(**{f"load_in_{bits}bit": True}, bnb_4bit_quant_type="nf4")
    load = partial(AutoModelForCausalLM.from_pretrained, tmp_path, dtype=torch.float32)
    rounded, model = (signed(load(**options), 0) for options in ({}, {"quantization_config": rounding}))
    for linear, expected in zip(linear_maps(rounded), map(weight_of, linear_maps(model)), strict=True):
        linear.weight.data = expected.float()
    for method in ("contributions", "integrated-gradients", "attnlrp", "erasure"):
        both = [token_scores(one, tiny_inputs("llama"), method, 5, position=1).flatten() for one in (rounded, model)]
        assert torch.corrcoef(torch.stack(both))[0, 1] > 0.95, method


@contextmanager
def distributed(model):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield nn.parallel.DistributedDataParallel(model)
    finally:
        torch.distributed.destroy_process_group()


def compiled(model):
    return nullcontext(torch.compile(nn.DataParallel(model), backend="eager"))


@pytest.mark.parametrize("wrapped", [compiled, distributed])
def test_the_model_inside_a_wrapper_is_signed_and_explained(wrapped):
    inputs, expected = tiny_inputs("bert"), signed(stock_model("bert"))
    with wrapped(stock_model("bert")) as model, torch.no_grad():
        before = logits_of(model, inputs)
        assert signed(model) is model
        torch.testing.assert_close(logits_of(model, inputs), logits_of(expected, inputs))
        assert not torch.allclose(before, logits_of(expected, inputs), atol=1e-2)
        scores = token_scores(model, inputs, "alti")
        torch.testing.assert_close(scores, token_scores(expected, inputs, "alti"), rtol=1e-3, atol=1e-5)


def test_a_model_with_an_adapter_is_signed():
    model = get_peft_model(stock_model("bert"), LoraConfig(**LORA))
    assert signed(model, 0.5) is model
    assert model.config.attn_negative_mass == 0.5
    assert type(model.get_base_model()) is BidirBertForSequenceClassification


def test_a_prompt_and_sharded_weights_are_refused_and_a_model_comes_before_its_tokenizer():
    prompt = get_peft_model(bert(), PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2))
    with pytest.raises(ValueError, match=r"pass model.get_base_model\(\)"):
        explain(prompt, tokenizer(), "a good film")
    sharded = type("FullyShardedDataParallel", (nn.Module,), {})()
    with pytest.raises(ValueError, match="FullyShardedDataParallel"):
        signed(sharded)
    with pytest.raises(ValueError, match=r"got a .*Tokenizer.* and a BidirBert"):
        explain(tokenizer(), bert(), "a good film")
