"""What signs show: the readings, on tiny models and on numbers with a planted effect."""

import pytest
import torch
from pandas import DataFrame
from transformers import LlamaConfig, LlamaForCausalLM

from hf_bidir import signed
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.explain import ForwardCache, Request, edge_contributions
from hf_bidir.explain.forward import forward_pass
from research.signs import copies, effects, negations, quiet
from research.signs.observed import layers_of, output_maps
from research.signs.orientation import sign_shares
from tests.explain.conftest import bert, flip_heads, sentences


def of(rows, **settings):
    return next(row for row in rows if settings.items() <= row.items())


def decoder(layers=2):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=40, num_key_value_heads=2, initializer_range=0.3, **shape)
    return signed(LlamaForCausalLM(config).eval().requires_grad_(False), 1.0)


def test_coefficients_times_values_along_the_gradient_are_the_contributions_of_the_package():
    model, inputs = bert(), {"input_ids": sentences()["input_ids"][:1]}
    _, layers = layers_of(model, inputs, lambda outputs: outputs.logits[0, 1])
    for layer, expected in zip(layers, edge_contributions(ForwardCache(model, inputs), Request(target=1)), strict=True):
        torch.testing.assert_close(layer.coefficients * (layer.gradient @ layer.values.mT), expected[0])


def test_a_negated_word_is_the_first_polar_word_behind_the_negation_and_another_word_as_far_away_is_removed():
    words = ["the", "good", "cast", "is", "not", "very", "good", "in", "this", "film"]
    tree = {"tokens": words, "token_labels": [2, 3, 2, 2, 1, 2, 4, 2, 2, 2]}
    neutral = {"tokens": ["not", "a", "film"], "token_labels": [2, 2, 2]}
    (found,) = negations.examples_of(DataFrame([tree, neutral]))
    texts = [" ".join(kept) for kept, _ in found.versions]
    assert texts[:2] == [" ".join(words), "the good cast is very good in this film"]
    assert texts[2] == "the good cast is not very good in film"
    assert [kept[place] for kept, place in found.versions] == ["good"] * 3 + ["this"] * 2
    assert texts[3:] == texts[:2]
    assert found.versions[0][1] == 6
    assert found.label == 1


def planted(kind):
    """A reading of 40 examples, `[examples, versions, queries, layers, heads]`, with an effect of the negation."""
    values = torch.rand(40, 3, 2, 3, 4, generator=torch.Generator().manual_seed(0)) + 0.1
    if kind == "sign":
        values[:, [0, 2], 1, 2, 3] *= -1
    elif kind == "threshold":
        values = values + 1
        values[:, 0, 0, 1, 2] /= 4
    else:  # the sign follows the label of the word
        values = LABELS.reshape(-1, 1, 1, 1, 1) * torch.tensor([-1.0, 1.0, -1.0]).reshape(1, 3, 1, 1, 1)
    return values


LABELS = torch.tensor([1.0, -1.0] * 20)


@pytest.mark.parametrize(
    ("kind", "where", "negative"),
    [
        ("sign", "layer 2, head 3, query the word", [1, 0, 1]),
        ("threshold", "layer 1, head 2, query [CLS]", [1, 0, 0]),
        ("label", "× label", [1, 0, 1]),
    ],
)
def test_a_head_whose_reading_changes_with_the_negation_is_chosen_and_counted(kind, where, negative):
    labels = LABELS if kind == "label" else torch.ones(40)
    found, chosen = negations.negative_of(planted(kind), labels, torch.arange(40) < 20, free=kind == "threshold")
    assert where in chosen
    assert found.double().mean(0).tolist() == negative


def test_permuted_signs_keep_magnitudes_and_the_number_of_negative_coefficients():
    a = torch.randn(4, 6, 6).tril()
    permuted = quiet.with_permuted_signs(a)
    assert torch.equal(permuted.abs(), a.abs())
    assert torch.equal((permuted < 0).sum(-1), (a < 0).sum(-1))
    assert not torch.equal(permuted, a)


def test_softmax_coefficients_neither_cancel_nor_change_without_signs():
    texts = [quiet.Text(torch.randint(5, 40, (1, 9)), torch.arange(9) == 0, torch.arange(9) > 0) for _ in range(24)]
    models = {"softmax": bert(0.0), "signed": bert(1.0)}
    maps = {name: output_maps(model, 2) for name, model in models.items()}
    reads = {name: quiet.read(model, maps[name], texts) for name, model in models.items()}
    rows = quiet.rows_of(reads, texts, maps)
    for measure in ("mass", "balance", "unsigned", "permuted"):
        found = {name: of(rows, model=name, reading="other", measure=measure)["value"] for name in models}
        assert found["softmax"] == pytest.approx(1, abs=1e-4)
        assert found["signed"] != pytest.approx(1, abs=0.01)
    assert of(rows, model="softmax", measure="quiet")["value"] == pytest.approx(0.25, abs=0.15)
    assert of(rows, measure="sinks", model="tokens")["value"] == pytest.approx(1 / 9)


def test_contributions_are_summed_by_the_side_of_the_coefficient_and_by_their_own_sign():
    a, gradients = torch.tensor([[[1.0, -2.0, 3.0, -4.0]]]), torch.tensor([[[1.0, 1.0, -1.0, -1.0]]])
    found = effects.by_side(a, gradients, torch.tensor([[0.0], [2.0]]))
    assert found.tolist() == [[[[1.0, 3.0], [4.0, 2.0]]], [[[0.0, 3.0], [5.0, 2.0]]]]


def test_a_head_is_right_by_its_sign_or_by_a_threshold_and_by_its_usual_sign():
    tells, constant, by_threshold = [[0.0, 3.0], [3.0, 0.0]], [[3.0, 1.0], [0.0, 0.0]], [[3.0, 0.0], [0.0, 1.0]]
    sums = torch.tensor([[[tells, constant]], [[tells, by_threshold]]]).expand(6, 2, 1, 2, 2, 2)
    rows = effects.rows_of("signed", sums, torch.arange(6) < 3)
    best = {row["measure"]: row["value"] for row in rows if row["reading"] == "best head"}
    assert best == {"sign": 1, "usual sign": 0.5, "advantage": 0.5}
    assert of(rows, reading="best head")["where"] == "layer 0, head 0"
    assert of(rows, reading="all heads", measure="sign")["value"] == pytest.approx(0.9)
    assert of(rows, reading="all heads, threshold", measure="sign")["value"] == 1


def test_direct_effects_are_what_the_last_state_loses_on_the_copy_without_these_coefficients():
    model, ids, states = decoder(layers=1), torch.randperm(40)[:12], []
    model.model.layers[0].mlp.down_proj.weight.zero_()
    one, heads = copies.Copy(0, key=3, query=9, before=6), torch.tensor([[0, 1], [0, 2]])
    coefficients, direct = copies.read(model, ids[None], [one])
    assert coefficients.shape == direct.shape == (1, 2, 1, 4)
    with hooked([model.model.norm], before=lambda _, args, kwargs: states.append(args[0][0, -1])):
        change = copies.removed(model, ids[None], [one], heads)
    rows = model.lm_head.weight - model.lm_head.weight.mean(0)
    before, after = (state * state.pow(2).mean().rsqrt() for state in states)
    torch.testing.assert_close(change[0], (after - before) @ rows[ids[3]], atol=1e-4, rtol=1e-4)
    lost = (states[0] - states[1]) * states[0].pow(2).mean().rsqrt() @ rows[ids[3]]
    torch.testing.assert_close(direct[0, 0, 0, heads[:, 1]].sum(), lost, atol=1e-4, rtol=1e-4)


def test_the_share_of_a_head_is_that_of_its_frequent_sign_over_texts_and_depends_on_no_flip():
    model, batch = bert(), sentences()
    edges = edge_contributions(ForwardCache(model, batch), Request(target=1))
    coefficients = forward_pass(model, batch).coefficients
    keep = batch["attention_mask"][:, None, :, None]
    for layer, (edge, a) in enumerate(zip(edges, coefficients, strict=True)):
        signed_pull = edge * a.sign() * keep  # |a| ∂y/∂a
        positive = signed_pull.clamp_min(0).sum((0, 2, 3)) / signed_pull.abs().sum((0, 2, 3))
        shares = sign_shares(model, [batch, batch], target=1)[layer]
        torch.testing.assert_close(shares, torch.maximum(positive, 1 - positive).detach(), rtol=1e-4, atol=1e-5)
    before = sign_shares(model, [batch], target=1)
    flip_heads(model, torch.tensor([[True, False], [False, True], [True, True]]))
    torch.testing.assert_close(sign_shares(model, [batch], target=1), before, rtol=1e-3, atol=1e-4)
    assert sign_shares(bert(0.5), [batch]) is None
