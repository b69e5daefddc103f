"""Alignment scores are their formulas, gradients included; hard attention draws as it should and trains unbiasedly."""

import math

import pytest
import torch

from hf_bidir.modeling.activations import softmax, tanhmax
from hf_bidir.recurrent.recurrent_attention import Reinforce, select_one
from hf_bidir.recurrent.scores import SCORES, WITHOUT_QUERY, ContentScore

SIZE, ATTENTION_SIZE, SCALE, LONGEST = 3, 4, 2.5, 6


def dot(first, second):
    return sum(a * b for a, b in zip(first, second, strict=True))


def times(matrix, vector):
    """`W x`, row by row."""
    return torch.stack([dot(row, vector) for row in matrix])


def length_of(vector):
    return torch.sqrt(dot(vector, vector))


FORMULAS = {
    "content": lambda score, s, h, i: dot(s, h) / (length_of(s) * length_of(h)),
    "additive": lambda score, s, h, i: dot(
        score.score.weight[0],
        torch.tanh(times(score.query.weight, s) + score.query.bias + times(score.key.weight, h)),
    ),
    "location": lambda score, s, h, i: dot(score.position.weight[i], s),
    "general": lambda score, s, h, i: dot(s, times(score.key.weight, h)),
    "dot": lambda score, s, h, i: dot(s, h),
    "scaled_dot": lambda score, s, h, i: dot(s, h) / math.sqrt(SIZE),
    "per_token": lambda score, s, h, i: dot(
        times(score.query.weight, h) + score.query.bias, times(score.key.weight, h) + score.key.bias
    ) / SCALE,
    "feed_forward": lambda score, s, h, i: torch.tanh(dot(score.score.weight[0], h) + score.score.bias[0]),
    "positional_feed_forward": lambda score, s, h, i: torch.tanh(dot(score.score.weight[0], h) + score.bias[i]),
}  # fmt: skip


def score_of(name):
    torch.manual_seed(0)
    sizes = {"query_size": SIZE, "key_size": SIZE, "attention_size": ATTENTION_SIZE}
    return SCORES[name](**sizes, scale=SCALE, max_length=LONGEST).double()


def queries_and_keys(queries):
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(2, count, SIZE, generator=generator, dtype=torch.float64, requires_grad=True)
        for count in (queries, 5)
    ]


@pytest.mark.parametrize("name", SCORES)
def test_a_score_equals_a_loop_over_its_elements_and_so_do_its_gradients(name):
    score = score_of(name)
    query, keys = queries_and_keys(1 if issubclass(SCORES[name], WITHOUT_QUERY) else 4)
    fast = score(query, keys)
    plain = torch.stack([
        torch.stack([torch.stack([FORMULAS[name](score, s, h, i) for i, h in enumerate(keys[b])]) for s in query[b]])
        for b in range(2)
    ])  # fmt: skip
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-6)
    weights, of = torch.randn_like(plain), [query, keys, *score.parameters()]
    gradients = [torch.autograd.grad((s * weights).sum(), of, allow_unused=True) for s in (fast, plain)]
    for got, expected in zip(*gradients, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "key_size", "message"),
    [
        ("content", 3, r'of the same size; got 2 and 3\. Choose "general" or "additive"'),
        ("dot", 3, r'of the same size; got 2 and 3\. Choose "general" or "additive"'),
        ("location", 2, r"has 4 positions \(max_position_embeddings\), and the input has 5"),
    ],
)
def test_sizes_and_lengths_that_a_score_cannot_take_are_refused_with_the_alternatives(name, key_size, message):
    with pytest.raises(ValueError, match=message):
        SCORES[name](query_size=2, key_size=key_size, max_length=4)(torch.zeros(1, 1, 2), torch.zeros(1, 5, 2))


def test_a_query_or_key_of_length_zero_has_no_angle_and_no_nan():
    scores = ContentScore(query_size=2, key_size=2)(torch.zeros(1, 1, 2), torch.ones(1, 3, 2))
    assert (scores == 0).all()


COEFFICIENTS = torch.tensor([[0.5, -0.3, 0.0, 0.2]])


def values(size=2):
    return torch.randn(4, size, generator=torch.Generator().manual_seed(0))


def test_at_evaluation_the_value_of_the_largest_coefficient_is_taken_with_its_sign():
    context, log_probability = select_one(-COEFFICIENTS, values(), sample=False)
    torch.testing.assert_close(context[0], -values()[0])
    assert log_probability.exp().item() == pytest.approx(0.5)


def test_a_key_is_drawn_in_proportion_to_its_magnitude_and_keeps_its_sign():
    torch.manual_seed(0)
    count = 20_000
    marks = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0])).expand(count, 4, 4)
    context, _ = select_one(COEFFICIENTS.expand(count, 1, 4), marks, sample=True)
    drawn = context.squeeze(1)
    share = (drawn != 0).float().mean(0)
    spread = 3 * (share * (1 - share) / count).sqrt()
    assert ((share - COEFFICIENTS[0].abs()).abs() <= spread + 1e-6).all()
    assert set(drawn.sum(1).tolist()) == {1.0, -2.0, 4.0}


def test_a_query_without_any_coefficient_gets_zeros_and_no_nan():
    coefficients = torch.zeros(1, 4, requires_grad=True)
    context, log_probability = select_one(coefficients, values(), sample=True)
    (context.sum() + log_probability.sum()).backward()
    assert context.tolist() == [[0, 0]]
    assert log_probability.item() == 0
    assert coefficients.grad.isfinite().all()


@pytest.mark.parametrize("activation", [softmax, tanhmax])
def test_the_mean_of_many_sampled_gradients_is_within_3_standard_errors_of_the_exact_one(activation):
    """On 4 positions the expected loss can be written out: `Σ_i p_i L_i`."""
    torch.manual_seed(0)
    scores = torch.tensor([0.8, -1.2, 0.3, 0.6], dtype=torch.float64)
    weight = torch.randn(4, 2, dtype=torch.float64)
    target = torch.tensor([0.5, -1.0], dtype=torch.float64)
    reinforce = Reinforce().double().eval()
    reinforce.baseline.fill_(0.7)

    def losses(context):
        return (context - target).square().sum(-1)

    of_scores, of_weight = scores.clone().requires_grad_(), weight.clone().requires_grad_()
    coefficients = activation(of_scores)
    probability = coefficients.abs() / coefficients.abs().sum()
    expected_loss = (probability * losses(coefficients.sign().unsqueeze(1) * of_weight)).sum()
    exact = torch.cat([g.flatten() for g in torch.autograd.grad(expected_loss, [of_scores, of_weight])])

    count = 5_000
    rows = scores.expand(count, 1, 4).clone().requires_grad_()
    tables = weight.expand(count, 4, 2).clone().requires_grad_()
    context, log_probability = select_one(activation(rows), tables, sample=True)
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
