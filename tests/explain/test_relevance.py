"""AttnLRP: conservation, agreement with LXT, invariance under flipped heads, and operations without a rule."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from torch import nn

import hf_bidir
from hf_bidir.checkpoints.layer_hooks import edited_projections, in_evaluation, observed_layers
from hf_bidir.explain import ForwardCache, Request, explain, integrated_relevance, relevance
from hf_bidir.explain.methods.attnlrp import RelevanceRules, proportional, relevance_rules
from hf_bidir.explain.readout import InputFunction
from hf_bidir.explain.registry import NoRule
from hf_bidir.modeling.signed_layers import signed_layers
from tests.explain.conftest import FAMILIES, asked, bert, family, inputs_of, sentences, tokenizer
from tests.tiny_models import stock_model

FIXTURES = Path(__file__).parent.parent / "fixtures"
ADDED = ("bias", "position", "cls_token", "register_tokens", "token_type", "wpe")  # what y has that no token brought
every_mass = pytest.mark.parametrize("negative_mass", [0.0, 0.5, 1.0])


def without_biases(model):
    """The model in double precision, without all that is added to what tokens and pixels bring."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in ADDED):
                weight.zero_()
    return model.double()


def doubled(inputs):
    return {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}


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


def attended(model, inputs):
    """`y` under the rules, and what goes into and out of every attention."""
    with in_evaluation(model), torch.enable_grad():
        function = InputFunction(ForwardCache(model, inputs), Request(target=1))
        with recorded_attention(model) as calls, relevance_rules(model):
            return function.score(function.start.clone().requires_grad_(), function.rows), calls


def absorbed_by_attention(y, calls):
    """The relevance that reaches a context and goes on to neither query, key nor value."""
    gradients = iter(torch.autograd.grad(y.sum(), [x for call in calls for x in call], retain_graph=True))
    total = 0
    for query, key, value, context in calls:
        *inner, outer = [(x * next(gradients)).sum().item() for x in (query, key, value, context)]
        total += outer - sum(inner)
    return total


@pytest.mark.parametrize(
    ("name", "negative_mass"),
    # at λ = 1 a class token of zeros has coefficients of 0
    [("GPT2ForSequenceClassification", 0.0), *((name, 0.5 if "ViT" in name else 1.0) for name in FAMILIES)],
)
def test_relevance_sums_to_the_logit_without_what_the_normalisers_absorb(name, negative_mass):
    model = without_biases(family(name, negative_mass))
    inputs = doubled(inputs_of(model))
    scores = asked(relevance, model, inputs, target=1)
    y, calls = attended(model, inputs)
    absorbed = absorbed_by_attention(y, calls)
    torch.testing.assert_close(y.detach(), model(**inputs).logits[:, 1])
    assert abs(scores.sum().item() + absorbed - y.sum().item()) < 1e-6 * y.abs().max().item()


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("lxt_*")), ids=lambda file: file.stem)
def test_softmax_models_have_the_relevance_that_lxt_computes(file):
    """The values are from benchmarks/lxt_reference.py."""
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        config = json.loads(opened.metadata()["config"])
    found = {name: tensors.pop(f"found.{name}") for name in ("input_ids", "logit", "relevance")}
    head = getattr(transformers, file.stem.removeprefix("lxt_"))
    model = head(head.config_class(**config)).double()
    model.load_state_dict(tensors)
    model = hf_bidir.signed(model.eval(), negative_mass=0.0)
    inputs = {"input_ids": found["input_ids"], "attention_mask": torch.ones_like(found["input_ids"])}
    torch.testing.assert_close(model(**inputs).logits[:, 1], found["logit"])
    torch.testing.assert_close(asked(relevance, model, inputs, target=1), found["relevance"], rtol=1e-4, atol=1e-6)


@every_mass
def test_a_product_of_coefficients_and_values_is_shared_half_and_half(negative_mass):
    """Of the relevance of a context, the values get half; query and key get as much as each other."""
    model = without_biases(bert(negative_mass))
    inputs = doubled(sentences())
    y, calls = attended(model, inputs)
    for call in calls:
        found = torch.autograd.grad(y.sum(), call, retain_graph=True)
        q, k, v, o = ((x * g).sum() for x, g in zip(call, found, strict=True))
        torch.testing.assert_close(v, o / 2)
        torch.testing.assert_close(q, k)


@pytest.mark.parametrize(
    ("operation", "share"),
    [
        (lambda x: torch.tanh(3 * x), 1.0),
        (lambda x: torch.nn.functional.gelu(x), 1.0),
        (lambda x: x * x.flip(-1), 1.0),
        (lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), 1.0),
        (lambda x: torch.nn.functional.layer_norm(x, normalized_shape=(6,)), 1.0),
        (lambda x: torch.nn.functional.relu(x, inplace=True), 1.0),
        (lambda x: 1 / (1 + x.square()), 0.0),
        (lambda x: x - torch.var_mean(x, -1, keepdim=True)[1], 1.0),
        (lambda x: torch.addmm(x, x.detach(), torch.eye(6)), 0.5),
    ],
)
def test_an_operation_passes_its_relevance_on(operation, share):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with RelevanceRules():
        y = operation(x * 1)
    weights = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    if not y.requires_grad:
        assert share == 0
        return
    (gradient,) = torch.autograd.grad((weights * y).sum(), x)
    expected = share * (weights * y).sum() if share != 0.5 else (weights * x).sum()
    torch.testing.assert_close((x * gradient).sum(), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(y, operation(x.detach().clone()))


@pytest.mark.parametrize("operation", [lambda x: x.clone().tanh_(), lambda x: torch.pow(2.0, x), torch.cumprod])
def test_an_operation_that_has_no_rule_is_an_error(operation):
    x = torch.randn(2, 3).requires_grad_()
    with RelevanceRules(), pytest.raises(NoRule, match="AttnLRP has no rule for the operation"):
        operation(x, -1) if operation is torch.cumprod else operation(x)


def test_integrated_relevance_is_the_mean_modified_gradient_at_midpoints():
    model, inputs = bert().double(), doubled(sentences())
    function = InputFunction(ForwardCache(model, inputs), Request(target=1))
    padding = model.get_input_embeddings().weight[model.config.pad_token_id].detach()
    change, expected = function.start - padding, 0
    for place in (0.25, 0.75):
        point = (padding + place * change).detach().requires_grad_()
        with torch.enable_grad(), relevance_rules(model):
            y = function.score(point, function.rows)
            expected = expected + torch.autograd.grad(y.sum(), point)[0] / 2
    torch.testing.assert_close(
        asked(integrated_relevance, model, inputs, 1, steps=2), (change * expected).sum(-1).detach()
    )
    with pytest.raises(ValueError, match="expected at least one step"):
        asked(integrated_relevance, model, inputs, 1, steps=0)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_the_attention_backend_does_not_matter(backend):
    model = family("LlamaForSequenceClassification").double().train()
    frozen = model.score.weight.requires_grad_(False)
    before = asked(relevance, model, inputs_of(model), target=1)
    model.set_attn_implementation(backend)
    torch.testing.assert_close(asked(relevance, model, inputs_of(model), target=1), before)
    assert (model.training, frozen.requires_grad) == (True, False)  # left as it was
    assert all(layer.signed_view.change() is None for layer in signed_layers(model))


def test_a_recurrent_encoder_has_no_rule():
    config = hf_bidir.BidirRnnConfig(vocab_size=40, embedding_size=8, hidden_size=8)
    model = hf_bidir.BidirRnnForSequenceClassification(config).eval()
    with pytest.raises(ValueError, match=r"no rule for BidirRnn.*; use contributions"):
        asked(relevance, model, {"input_ids": torch.arange(5, 11).view(1, 6)})


def test_the_relevance_of_a_source_and_of_what_was_generated_sum_to_the_logit():
    """An encoder-decoder without biases: relevance of both embeddings, and what the normalisers absorb."""
    model = without_biases(hf_bidir.signed(stock_model("bart"), negative_mass=1.0))
    inputs = {"input_ids": torch.arange(5, 11).view(1, 6), "decoder_input_ids": torch.arange(7, 11).view(1, 4)}
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding) and "Scaled" in str(module)]
    parts = []

    def remember(module, args, output):
        parts.append(output.detach().requires_grad_())
        return parts[-1].clone()

    with torch.enable_grad(), recorded_attention(model) as calls, relevance_rules(model):
        hooks = [module.register_forward_hook(remember) for module in embeddings]
        y = model(**inputs).logits[0, -1, 7]
        for hook in hooks:
            hook.remove()
    absorbed = absorbed_by_attention(y, calls)
    total = sum((part * gradient).sum() for part, gradient in zip(parts, torch.autograd.grad(y, parts), strict=True))
    assert len(parts) == 2
    assert total.item() + absorbed == pytest.approx(y.item(), rel=1e-6)


def test_half_precision_has_about_the_same_relevance():
    model = bert()
    exact = asked(relevance, model, sentences(), target=1)
    rounded = asked(relevance, model.to(torch.bfloat16), sentences(), target=1)
    assert torch.corrcoef(torch.stack([exact[0], rounded[0].float()]))[0, 1] > 0.98


def test_an_encoder_decoder_is_aligned_by_relevance():
    model = hf_bidir.signed(stock_model("bart", vocab_size=14), negative_mass=1.0)
    found = explain(model, tokenizer(), "a good film", "attnlrp")
    assert found.scores["relevance"].shape == (len(found.written), len(found.source))
    ids = torch.tensor([[2, 5, 6, 8, 3]])
    embedding = model.get_encoder().get_input_embeddings()
    start = embedding(ids).detach().requires_grad_()
    with torch.enable_grad(), relevance_rules(model):
        # the encoder takes its embeddings as an argument here, instead of a hook
        logits = model(inputs_embeds=start, decoder_input_ids=torch.tensor([[2]])).logits[0, 0]
        chosen = model.generate(ids, num_beams=1)[0, 1]
        (gradient,) = torch.autograd.grad(logits[chosen] - logits.mean(), start)
    torch.testing.assert_close(
        found.scores["relevance"][0], (start * gradient)[0].sum(-1).detach(), atol=1e-4, rtol=1e-3
    )


def test_the_rules_define_no_second_derivatives_and_say_so():
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="AttnLRP define no second derivatives; leave out create_graph=True"):
        torch.autograd.grad(proportional(x, x.exp()).sum(), x, create_graph=True)
