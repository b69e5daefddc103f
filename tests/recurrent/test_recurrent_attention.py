"""Alignment scores are their formulas."""

import math

import pytest
import torch

from hf_bidir import BidirRnnConfig
from hf_bidir.recurrent.configuration_bidir_rnn import SCORES_ALONE
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
