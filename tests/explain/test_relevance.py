"""AttnLRP: conservation, agreement with LXT, the rules of operations, and operations without a rule."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open

import hf_bidir
from hf_bidir.checkpoints.layer_hooks import edited_projections, in_evaluation, observed_layers
from hf_bidir.explain import ForwardCache, Request, relevance
from hf_bidir.explain.methods.attnlrp import RelevanceRules, relevance_rules
from hf_bidir.explain.methods.gradients import InputFunction
from hf_bidir.explain.readout import readout_of
from hf_bidir.explain.registry import NoRule
from hf_bidir.modeling.signed_layers import signed_layers
from tests.explain.conftest import FAMILIES, asked, bert, doubled, family, inputs_of, pooling, sentences

FIXTURES = Path(__file__).parent.parent / "fixtures"
ADDED = ("bias", "position", "cls_token", "register_tokens", "token_type", "wpe")  # what y has that no token brought


def without_biases(model):
    """The model in double precision, without all that is added to what tokens and pixels bring."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in ADDED):
                weight.zero_()
    return model.double()


@contextmanager
def recorded_attention(model):
    """Record `[query, key, value, context]` of every call, before and after the rules of an inner context."""
    calls = []

    def projected(*projections):
        calls.append(list(projections))
        return projections

    def observed(layer, key, value, context):
        calls[-1].append(context)

    with edited_projections(model, projected), observed_layers(model, observed):
        yield calls


def relevance_of_attention(model, inputs):
    """`y` under the rules, and of every attention the relevance of query, key, value and context."""
    with in_evaluation(model), torch.enable_grad():
        cache, request = ForwardCache(model, inputs), Request(target=1)
        function = InputFunction(cache, request)
        with recorded_attention(model) as calls, relevance_rules(model):
            outputs = function.run(function.start.clone().requires_grad_(), function.rows)
            y = readout_of(cache, request, outputs)(outputs)
    shares = []
    for states in calls:
        gradients = torch.autograd.grad(y.sum(), states, retain_graph=True)
        shares.append([(state * gradient).sum() for state, gradient in zip(states, gradients, strict=True)])
    return y.detach(), shares


@pytest.mark.parametrize(
    ("name", "negative_mass"),
    # at λ = 1 a class token of zeros has coefficients of 0
    [("GPT2ForSequenceClassification", 0.0), *((name, 0.5 if "ViT" in name else 1.0) for name in FAMILIES)],
)
def test_relevance_sums_to_the_logit_without_what_the_normalisers_absorb(name, negative_mass):
    model = without_biases(family(name, negative_mass))
    inputs = doubled(inputs_of(model))
    y, shares = relevance_of_attention(model, inputs)
    absorbed = sum(context - query - key - value for query, key, value, context in shares)
    torch.testing.assert_close(y, model(**inputs).logits[:, 1])
    difference = asked(relevance, model, inputs, target=1).sum() + absorbed - y.sum()
    assert abs(difference) < 1e-6 * y.abs().max()


@pytest.mark.parametrize("negative_mass", [0.0, 0.5, 1.0])
def test_values_get_half_of_the_relevance_of_a_context_and_query_and_key_as_much_as_each_other(negative_mass):
    model = without_biases(bert(negative_mass))
    for query, key, value, context in relevance_of_attention(model, doubled(sentences()))[1]:
        torch.testing.assert_close(value, context / 2)
        torch.testing.assert_close(query, key)


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("lxt_*")), ids=lambda file: file.stem)
def test_softmax_models_have_the_relevance_that_lxt_computes(file):
    """The values are from benchmarks/lxt_reference.py."""
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        config = json.loads(opened.metadata()["config"])
    reference = {name: tensors.pop(f"found.{name}") for name in ("input_ids", "logit", "relevance")}
    head = getattr(transformers, file.stem.removeprefix("lxt_"))
    model = head(head.config_class(**config)).double()
    model.load_state_dict(tensors)
    model = hf_bidir.signed(model.eval(), negative_mass=0.0)
    inputs = {"input_ids": reference["input_ids"], "attention_mask": torch.ones_like(reference["input_ids"])}
    torch.testing.assert_close(model(**inputs).logits[:, 1], reference["logit"])
    torch.testing.assert_close(asked(relevance, model, inputs, target=1), reference["relevance"], rtol=1e-4, atol=1e-6)


def passed_on(operation, x):
    """The output of an operation, and its relevance and that of its input, for weights of the output."""
    with RelevanceRules():
        output = operation(x * 1)
    torch.testing.assert_close(output, operation(x.detach().clone()))
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    gradient = torch.autograd.grad((weights * output).sum(), x)[0] if output.requires_grad else torch.zeros_like(x)
    return weights, output, (x * gradient).sum()


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: torch.tanh(3 * x),
        lambda x: torch.nn.functional.gelu(input=x),
        lambda x: torch.nn.functional.relu(x, inplace=True),
        lambda x: x * x.flip(-1),
        lambda x: x.clone().mul_(x.flip(-1)),
        lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(),
        lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6) ** -0.5,
        lambda x: torch.nn.functional.layer_norm(x, normalized_shape=(6,), weight=torch.arange(1.0, 7.0)),
        lambda x: x - torch.var_mean(x, -1, keepdim=True)[1],
        lambda x: x @ torch.arange(12.0).view(6, 2),
    ],
)
def test_an_operation_passes_all_its_relevance_on(operation):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights, output, relevance_of_input = passed_on(operation, x)
    torch.testing.assert_close(relevance_of_input, (weights * output).sum(), atol=1e-4, rtol=1e-4)


def test_scales_are_constant_and_of_a_sum_the_summands_get_their_own():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert passed_on(lambda x: 1 / (1 + x.square()), x)[2] == 0
    weights, _, relevance_of_input = passed_on(lambda x: torch.addmm(x, x.detach(), torch.eye(6)), x)
    torch.testing.assert_close(relevance_of_input, (weights * x).sum(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (lambda x: x.clone().tanh_(), "tanh_"),
        (lambda x: torch.pow(2.0, x), "pow"),
        (lambda x: torch.cumprod(x, -1), "cumprod"),
        (lambda x: torch.addmm(x, x, x), "addmm"),
        (lambda x: torch.einsum("ij,ij,ij->ij", x, x, x), "einsum"),
    ],
)
def test_an_operation_that_has_no_rule_is_an_error_that_names_it(operation, name):
    with RelevanceRules(), pytest.raises(NoRule, match=f"no rule for the operation {name};"):
        operation(torch.randn(3, 3).requires_grad_())


def test_the_attention_backend_does_not_matter_and_the_model_is_left_as_it_was():
    model = family("LlamaForSequenceClassification").double().train()
    model.score.weight.requires_grad_(False)
    of_sdpa = asked(relevance, model, inputs_of(model), target=1)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(asked(relevance, model, inputs_of(model), target=1), of_sdpa)
    assert (model.training, model.score.weight.requires_grad) == (True, False)
    assert all(layer.signed_view.change() is None for layer in signed_layers(model))


def test_a_recurrent_encoder_has_no_rule():
    with pytest.raises(NoRule, match=r"no rule for BidirRnn.*; use contributions"):
        asked(relevance, pooling(), sentences())
