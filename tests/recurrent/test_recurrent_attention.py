"""Alignment scores are their formulas; hard attention draws as it should and trains unbiasedly."""

import math

import pytest
import torch

from hf_bidir import BidirRnnConfig
from hf_bidir.modeling.activations import tanhmax
from hf_bidir.recurrent.configuration_bidir_rnn import SCORES_ALONE
from hf_bidir.recurrent.recurrent_attention import Reinforce, select_one
from hf_bidir.recurrent.scores import SCORES

SIZE, SCALE, POSITIONS = 3, 2.5, 6
FORMULAS = {  # of a score module, a query s, and the key h at position i
    "content": lambda m, s, h, i: s @ h / (s.norm() * h.norm()),
    "additive": lambda m, s, h, i: m.score.weight[0] @ torch.tanh(m.query.weight @ s + m.query.bias + m.key.weight @ h),
    "location": lambda m, s, h, i: m.position.weight[i] @ s,
    "general": lambda m, s, h, i: s @ m.key.weight @ h,
    "dot": lambda m, s, h, i: s @ h,
    "scaled_dot": lambda m, s, h, i: s @ h / math.sqrt(SIZE),
    "per_token": lambda m, s, h, i: (m.query.weight @ h + m.query.bias) @ (m.key.weight @ h + m.key.bias) / SCALE,
    "feed_forward": lambda m, s, h, i: torch.tanh(m.score.weight[0] @ h + m.score.bias[0]),
    "positional_feed_forward": lambda m, s, h, i: torch.tanh(m.score.weight[0] @ h + m.bias[i]),
}


def score_of(name):
    torch.manual_seed(0)
    score = SCORES[name](SIZE, BidirRnnConfig(hidden_size=4, attn_scale=SCALE, max_position_embeddings=POSITIONS))
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter)
    return score.double()


@torch.no_grad()
@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_its_formula_for_every_pair_of_query_and_key(name):
    score = score_of(name)
    queries = torch.randn(2, 1 if name in SCORES_ALONE else 4, SIZE).double()
    keys = torch.randn(2, 5, SIZE).double()
    scores = score(queries, keys)
    assert scores.shape == (2, queries.shape[1], 5)
    for text, query, key in torch.cartesian_prod(*map(torch.arange, scores.shape)):
        expected = FORMULAS[name](score, queries[text, query], keys[text, key], key)
        torch.testing.assert_close(scores[text, query, key], expected)


@pytest.mark.parametrize("name", ["location", "positional_feed_forward"])
def test_a_text_with_more_positions_than_a_score_has_is_refused_with_both_numbers(name):
    longest = score_of(name)(torch.zeros(1, 1, SIZE).double(), torch.zeros(1, POSITIONS, SIZE).double())
    assert longest.shape[-1] == POSITIONS
    with pytest.raises(ValueError, match=f"{POSITIONS} positions .*max_position_embeddings.* {POSITIONS + 1};"):
        score_of(name)(torch.zeros(1, 1, SIZE).double(), torch.zeros(1, POSITIONS + 1, SIZE).double())


COEFFICIENTS = torch.tensor([[0.5, -0.3, 0.0, 0.2]])


def test_at_evaluation_the_value_of_the_largest_coefficient_is_taken_with_its_sign():
    values = torch.randn(4, 2)
    context, log_probability = select_one(-COEFFICIENTS, values, sample=False)
    torch.testing.assert_close(context[0], -values[0])
    assert log_probability.exp().item() == pytest.approx(0.5)


def test_a_key_is_drawn_in_proportion_to_its_magnitude_and_keeps_its_sign():
    torch.manual_seed(0)
    count = 20_000
    marks = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0])).expand(count, 4, 4)
    context, log_probability = select_one(COEFFICIENTS.expand(count, 1, 4), marks, sample=True)
    drawn = context.squeeze(1)
    share = (drawn != 0).float().mean(0)
    spread = 3 * (share * (1 - share) / count).sqrt()
    assert ((share - COEFFICIENTS[0].abs()).abs() <= spread + 1e-6).all()
    assert set(drawn.sum(1).tolist()) == {1.0, -2.0, 4.0}
    torch.testing.assert_close(log_probability[:, 0].exp(), ((drawn != 0) * COEFFICIENTS[0].abs()).sum(1))


def test_a_query_without_any_coefficient_gets_zeros_and_no_nan():
    coefficients = torch.zeros(1, 4, requires_grad=True)
    context, log_probability = select_one(coefficients, torch.randn(4, 2), sample=True)
    (context.sum() + log_probability.sum()).backward()
    assert context.tolist() == [[0, 0]]
    assert coefficients.grad.tolist() == [[0, 0, 0, 0]]


def test_the_mean_of_many_sampled_gradients_is_within_3_standard_errors_of_the_exact_one():
    """On 4 positions the expected loss can be written out: `Σ_i p_i L_i`."""
    torch.manual_seed(0)
    scores = torch.tensor([0.8, -1.2, 0.3, 0.6], dtype=torch.float64, requires_grad=True)
    values = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    reinforce = Reinforce().double().eval()
    reinforce.baseline.fill_(0.7)

    def losses(context):
        return (context - torch.tensor([0.5, -1.0])).square().sum(-1)

    coefficients = tanhmax(scores)
    probability = coefficients.abs() / coefficients.abs().sum()
    expected_loss = (probability * losses(coefficients.sign().unsqueeze(1) * values)).sum()
    exact = torch.cat([g.flatten() for g in torch.autograd.grad(expected_loss, [scores, values])])

    count = 5_000
    rows, tables = (x.detach().expand(count, *x.shape).clone().requires_grad_() for x in (scores, values))
    context, log_probability = select_one(tanhmax(rows).unsqueeze(1), tables, sample=True)
    loss = reinforce(losses(context.squeeze(1)), log_probability.squeeze(1)) * count  # its mean, undone
    sampled = torch.cat([g.reshape(count, -1) for g in torch.autograd.grad(loss, [rows, tables])], dim=1)
    error = sampled.std(0) / count**0.5
    assert ((sampled.mean(0) - exact).abs() <= 3 * error + 1e-12).all()


def test_the_loss_is_that_of_the_losses_and_the_baseline_follows_it_in_training_alone():
    reinforce = Reinforce()
    for _ in range(60):
        assert reinforce(torch.tensor([1.0, 3.0]), torch.tensor([-0.5, -2.0])).item() == pytest.approx(2.0)
    assert reinforce.baseline.item() == pytest.approx(2.0, abs=0.01)
    reinforce.eval()(torch.full((3,), 50.0), torch.zeros(3))
    assert reinforce.baseline.item() == pytest.approx(2.0, abs=0.01)
