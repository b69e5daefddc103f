"""Every alignment score is its formula, element by element, gradients included."""

import math

import pytest
import torch

from hf_bidir.modeling.scores import SCORES, WITHOUT_QUERY, ContentScore, DotScore, LocationScore

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


def test_every_score_has_a_formula_here():
    assert FORMULAS.keys() == SCORES.keys()


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


@pytest.mark.parametrize("score", [ContentScore, DotScore])
def test_a_product_of_unequal_sizes_is_refused_with_the_alternatives(score):
    with pytest.raises(ValueError, match=r'of the same size; got 2 and 3\. Choose "general" or "additive"'):
        score(query_size=2, key_size=3)


def test_a_length_that_location_has_never_seen_is_refused():
    location = LocationScore(query_size=2, key_size=2, max_length=4)
    with pytest.raises(ValueError, match=r"has 4 positions \(max_position_embeddings\), and the input has 5"):
        location(torch.zeros(1, 1, 2), torch.zeros(1, 5, 2))


def test_a_query_or_key_of_length_zero_has_no_angle_and_no_nan():
    scores = ContentScore(query_size=2, key_size=2)(torch.zeros(1, 1, 2), torch.ones(1, 3, 2))
    assert (scores == 0).all()
