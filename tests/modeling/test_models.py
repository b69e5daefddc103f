"""Signed models of every kind: equality with the stock model, backends, windows, gradients, compilation."""

import copy

import pytest
import torch
import transformers

import hf_bidir
from hf_bidir import signed
from hf_bidir.modeling.signed_layers import signed_layers
from tests.tiny_models import DECODERS, ENCODERS, FAMILIES, SHAPE, TEXT, inputs_of, logits_of, signed_model, stock_model

every_family = pytest.mark.parametrize("family", FAMILIES)
BACKENDS = ["sdpa", "eager"]


def windowed(family, reach):
    """A model whose tokens attend to their neighbourhood only."""
    model = signed_model(family)
    model.config.attn_scope, model.config.attn_window = "window", reach
    return model


def logits_and_gradients(model, run, inputs):
    model.zero_grad()
    logits = logits_of(run, inputs)
    logits.log_softmax(-1)[..., 0].sum().backward()
    return [logits, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("activation", ["tanhmax", "balanced"])
@every_family
def test_without_negative_mass_a_signed_model_equals_the_stock_model_and_with_it_moves(family, activation):
    stock, inputs = stock_model(family), inputs_of(family)
    model = signed(copy.deepcopy(stock), 0.0, attn_activation=activation)
    for implementation in BACKENDS:
        logits = []
        for one in (stock, model):
            one.set_attn_implementation(implementation)
            logits.append(logits_of(one, inputs))
        assert torch.equal(*logits)
    model.config.attn_negative_mass = 1.0
    assert (logits_of(model, inputs) - logits[0]).abs().max() > 1e-2


@pytest.mark.parametrize(("family", "reach"), [*((family, None) for family in FAMILIES), ("bert", 2), ("vit", 2)])
def test_backends_agree_in_logits_and_gradients(family, reach):
    model = windowed(family, reach) if reach else signed_model(family)
    model.config.attn_negative_mass = [[0.05, 0.1, 0.5, 1.0], 1.0] * (len(signed_layers(model)) // 2)
    results = []
    for implementation in BACKENDS:
        model.set_attn_implementation(implementation)
        results.append(logits_and_gradients(model, model, inputs_of(family)))
    for expected, got in zip(*results, strict=True):
        assert (got - expected).norm() <= 1e-4 * expected.norm() + 1e-5


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_no_coefficient_goes_further_than_a_window_and_one_that_holds_everything_changes_nothing(family):
    inputs = inputs_of(family)
    for coefficients in windowed(family, 2)(**inputs, output_attentions=True).attentions:
        place = torch.arange(coefficients.shape[-1])
        assert (coefficients[..., (place[:, None] - place).abs() > 2] == 0).all()
        assert (coefficients[0] != 0).sum(-1).min() >= 2
    torch.testing.assert_close(logits_of(windowed(family, 50), inputs), logits_of(signed_model(family), inputs))


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
    if family in ENCODERS:
        dropped = (inputs["attention_mask"] == 0)[:, None, None].expand_as(coefficients)
        assert (coefficients[dropped] == 0).all()


def test_the_model_compiles_into_one_graph():
    model, inputs = signed_model("bert", [[0.0, 0.1, 0.5, 1.0], 1.0]), inputs_of("bert")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    results = [logits_and_gradients(model, run, inputs) for run in (model, compiled)]
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)


def test_a_composite_of_two_models_is_signed_from_its_parts():
    config = transformers.BertConfig(**SHAPE | TEXT, is_decoder=True, add_cross_attention=True)
    decoder = transformers.BertLMHeadModel(config)
    model = hf_bidir.BidirEncoderDecoderModel(encoder=stock_model("bert").bert, decoder=decoder)
    assert (len(signed_layers(model)), type(model.config).model_type) == (6, "bidir_encoder-decoder")
