"""Signed models of every kind: equality with the stock model, backends, gradients, compilation."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from transformers import (
    pipeline,
)

import hf_bidir
from hf_bidir import BidirBertConfig, register_attn_activation, signed
from hf_bidir.modeling import activations
from hf_bidir.modeling.signed_layers import signed_layers
from tests.tiny_models import DECODERS, ENCODERS, FAMILIES, IMAGE_MODELS, SHAPE, TEXT, inputs_of, logits_of, stock_model

every_family = pytest.mark.parametrize("family", FAMILIES)
BACKENDS = ["sdpa", "eager"]


def signed_model(family, mass=1.0, **fields):
    return signed(stock_model(family, **fields), mass)


@pytest.mark.parametrize("implementation", BACKENDS)
@every_family
def test_without_negative_mass_a_signed_model_equals_the_stock_model_to_the_bit(family, implementation):
    stock = stock_model(family)
    stock.set_attn_implementation(implementation)
    expected = logits_of(stock, inputs_of(family))
    assert torch.equal(logits_of(signed(stock, 0.0), inputs_of(family)), expected)


@every_family
def test_negative_mass_moves_the_outputs(family):
    difference = logits_of(signed_model(family), inputs_of(family)) - logits_of(stock_model(family), inputs_of(family))
    assert difference.abs().max() > 1e-2


@pytest.mark.parametrize("per_head", [False, True])
@every_family
def test_backends_agree_in_logits_and_gradients(family, per_head):
    layers = len(signed_layers(signed_model(family)))
    mass = [[0.05, 0.1, 0.5, 1.0]] * layers if per_head else 1.0
    results = []
    for implementation in BACKENDS:
        model = signed_model(family, mass)
        model.set_attn_implementation(implementation)
        logits = logits_of(model, inputs_of(family))
        logits.log_softmax(-1)[..., 0].sum().backward()
        results.append([logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    for expected, got in zip(*results, strict=True):
        assert (got - expected).norm() <= 1e-4 * expected.norm() + 1e-5


@pytest.mark.parametrize("implementation", BACKENDS)
@pytest.mark.parametrize("family", ENCODERS + DECODERS)
def test_padding_changes_nothing(family, implementation):
    model, batch = signed_model(family), inputs_of(family)
    model.set_attn_implementation(implementation)
    together = model(**batch).logits
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        alone = model(input_ids=batch["input_ids"][row : row + 1, :length]).logits
        expected = together[row : row + 1] if together.dim() == 2 else together[row : row + 1, :length]
        torch.testing.assert_close(expected, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("implementation", BACKENDS)
def test_no_token_of_a_decoder_attends_to_a_later_one(family, implementation):
    model, ids = signed_model(family), inputs_of(family)["input_ids"][:1]
    model.set_attn_implementation(implementation)
    changed = ids.clone()
    changed[0, 5] = ids[0, 5] % 50 + 3
    moved = (model(ids).logits - model(changed).logits).abs().amax(-1)[0] > 1e-5
    assert moved.nonzero().flatten().tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize("family", [*DECODERS, "bart", "t5"])
def test_generation_is_the_same_with_and_without_a_cache(family):
    model = signed_model(family)
    ids = inputs_of(family)["input_ids"][:1]
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    generated = [model.generate(ids, use_cache=use_cache, **options) for use_cache in (True, False)]
    assert generated[0].tolist() == generated[1].tolist()


@pytest.mark.parametrize("implementation", BACKENDS)
@every_family
def test_a_call_that_asks_for_attentions_gets_signed_coefficients_on_every_backend(family, implementation):
    model, inputs = signed_model(family), inputs_of(family)
    model.set_attn_implementation(implementation)
    expected = logits_of(model, inputs)
    outputs = model(**inputs, output_attentions=True)
    kinds = [name for name, found in outputs.items() if name.endswith("attentions") and found]
    assert len(kinds) == (3 if family in ("bart", "t5") else 1)
    for kind in kinds:
        assert len(outputs[kind]) == 2
        for coefficients in outputs[kind]:
            assert coefficients.min() < 0 < coefficients.max()
            assert (coefficients.abs().sum(-1) <= 1 + 1e-5).all()
    torch.testing.assert_close(logits_of(model, inputs, output_attentions=True), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_base_model_has_coefficients_too_and_the_next_call_is_fast_again(family):
    model, inputs = signed_model(family), inputs_of(family)
    assert model.base_model(**inputs, output_attentions=True).attentions[0].min() < 0
    outputs = model.base_model(**inputs)
    assert "attentions" not in outputs


def test_no_coefficient_goes_to_padding():
    batch = inputs_of("bert")
    for coefficients in signed_model("bert")(**batch, output_attentions=True).attentions:
        dropped = (batch["attention_mask"] == 0)[:, None, None].expand_as(coefficients)
        assert (coefficients[dropped] == 0).all()


@every_family
def test_gradient_checkpointing_runs_every_layer_twice_and_changes_no_gradient(family):
    # T5's bias of zeros has a gradient when it is checkpointed, and then takes a path that drops other coefficients
    fields = {"dropout_rate": 0.0} if family == "t5" else {}
    models, calls = [signed_model(family, **fields) for _ in range(2)], []
    models[1].gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for model in models:
        calls.append(0)
        for layer in signed_layers(model):
            layer.register_forward_hook(lambda *_: calls.__setitem__(-1, calls[-1] + 1))
        torch.manual_seed(1)  # the same coefficients are dropped in both, and again when a layer is run again
        logits_of(model.train(), inputs_of(family)).sum().backward()
    assert calls[1] == 2 * calls[0]
    for expected, got in zip(*(model.parameters() for model in models), strict=True):
        if expected.grad is not None:
            torch.testing.assert_close(got.grad, expected.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_gradient_checkpointing_runs_the_path_again_that_gave_the_coefficients(family):
    model, inputs = signed_model(family).train(), inputs_of(family)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    outputs = model(**inputs, output_attentions=True)
    outputs.logits.sum().backward()
    assert len(outputs.attentions) == 2
    assert "attentions" not in model(**inputs)


@pytest.mark.parametrize("mass", [1.0, [[0.0, 0.1, 0.5, 1.0]] * 2], ids=["model", "head"])
@pytest.mark.parametrize("family", ["bert", "vit", "llama"])
def test_the_model_compiles_into_one_graph(family, mass):
    torch._dynamo.reset()
    model = signed_model(family, mass)
    compiled = torch.compile(model, fullgraph=True)
    gradients = []
    for run in (model, compiled):
        model.zero_grad()
        logits = run(**inputs_of(family)).logits
        logits.log_softmax(-1)[..., 0].sum().backward()
        gradients.append([logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mass", [1.0, [[0.0, 0.1, 0.5, 1.0]] * 2], ids=["model", "head"])
def test_the_model_exports_into_one_program(mass):
    model, inputs = signed_model("roberta", mass), inputs_of("roberta")
    program = torch.export.export(model, (), inputs)
    torch.testing.assert_close(program.module()(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["bert", "vit", "llama"])
def test_half_precision_costs_no_more_digits_than_the_stock_model_loses(family, dtype):
    errors = []
    for model in (stock_model(family, initializer_range=0.1), signed_model(family, initializer_range=0.1)):
        exact = logits_of(model, inputs_of(family))
        inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs_of(family).items()}
        half = logits_of(model.to(dtype), inputs)
        assert half.dtype == dtype
        errors.append((half.float() - exact).norm() / exact.norm())
    assert errors[1] <= 3 * errors[0]


def test_models_built_from_one_config_in_threads_leave_it_signed():
    config = BidirBertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    for _ in range(5):
        with ThreadPoolExecutor(4) as threads:
            models = list(threads.map(hf_bidir.BidirBertModel, [config] * 4))
        assert type(config) is BidirBertConfig
        assert [len(signed_layers(model)) for model in models] == [1] * 4


def test_a_composite_of_two_models_is_signed_from_its_parts():
    config = transformers.BertConfig(**SHAPE | TEXT, is_decoder=True, add_cross_attention=True)
    decoder = transformers.BertLMHeadModel(config)
    model = hf_bidir.BidirEncoderDecoderModel(encoder=stock_model("bert").bert, decoder=decoder)
    assert (len(signed_layers(model)), model.config.model_type) == (6, "bidir_encoder-decoder")


def test_signing_leaves_the_stock_config_as_it_was():
    stock = stock_model("bert")
    config, before = stock.config, stock.config.to_dict()
    model = signed(stock, 0.5)
    assert model is stock
    assert config.to_dict() == before
    assert model.config is not config
    assert model.base_model.config is model.config


def test_a_change_of_the_negative_mass_reaches_every_layer():
    model, inputs = signed_model("llama", 0.0), inputs_of("llama")
    softmax = model(**inputs).logits
    model.config.attn_negative_mass = 1.0
    torch.testing.assert_close(model(**inputs).logits, signed_model("llama", 1.0)(**inputs).logits)
    assert (model(**inputs).logits - softmax).abs().max() > 1e-2


def test_a_registered_activation_reaches_every_layer(monkeypatch):
    monkeypatch.setattr(activations, "_ACTIVATIONS", dict(activations._ACTIVATIONS))
    calls = []

    def first_key_only(scores, keep=None, dim=-1):
        calls.append(scores.shape)
        first = torch.zeros(scores.shape[:-1], dtype=torch.long)
        return torch.nn.functional.one_hot(first, scores.shape[-1]).to(scores)

    register_attn_activation("first_key_only", first_key_only)
    signed(stock_model("vit"), attn_activation="first_key_only")(**inputs_of("vit"))
    assert calls == [(3, 4, 17, 17)] * 2


@pytest.mark.parametrize("family", IMAGE_MODELS)
def test_the_image_pipeline_runs_a_signed_model(family):
    from PIL import Image

    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    classify = pipeline("image-classification", model=signed_model(family), image_processor=processor)
    found = classify(Image.new("RGB", (8, 8)), top_k=2)
    assert {prediction["label"] for prediction in found} == {"LABEL_0", "LABEL_1"}
