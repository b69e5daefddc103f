"""The penalty on heads whose output comes from coefficients of one sign."""

import math
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch

from hf_bidir import BidirBertConfig, BidirBertModel
from hf_bidir.checkpoints.layer_hooks import signed_parts
from hf_bidir.finetune import both_signs
from hf_bidir.finetune.both_signs import one_sidedness
from tests.explain.conftest import flip_heads

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
KEEP = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
BATCH = {"input_ids": torch.arange(10).view(2, 5), "attention_mask": KEEP}


def model_of(negative_mass):
    torch.manual_seed(0)
    config = BidirBertConfig(**SHAPE, vocab_size=30, attn_negative_mass=negative_mass, initializer_range=0.5)
    return BidirBertModel(config).eval()


def penalties_of(model, most_unequal=1.0, keep=KEEP):
    with one_sidedness(model, keep, most_unequal) as penalties:
        model(**BATCH)
    return torch.stack(penalties)


def shares_of_negatives(model):
    """`[layers, heads]`: the mean over tokens of the negative part's share of the squared distances from the means."""
    shares = []

    def record(*parts):
        distances = [(x - x.mean(0)).square().sum(-1) for x in (part[KEEP.bool()] for part in parts)]
        shares.append((distances[1] / (distances[0] + distances[1])).mean(0))

    with signed_parts(model, record):
        model(**BATCH)
    return torch.stack(shares)


@pytest.mark.parametrize("most_unequal", [1.0, 1.2])
def test_the_penalty_is_the_distance_of_the_signs_shares_in_logarithms_beyond_what_a_head_may_differ(most_unequal):
    share = shares_of_negatives(model_of(1.0))
    expected = ((share / (1 - share)).log().abs() - math.log(most_unequal)).clamp_min(0).mean(-1)
    torch.testing.assert_close(penalties_of(model_of(1.0), most_unequal), expected, rtol=1e-4, atol=1e-4)


def test_one_token_of_large_values_does_not_decide_the_penalty():
    contexts = torch.randn(2, 1, 50, 1, 8, generator=torch.Generator().manual_seed(0))
    contexts[0, 0, 0] *= 30  # so the variances differ by a factor of about 20
    recorded = patch.object(both_signs, "signed_parts", lambda model, record: nullcontext(record(*contexts)))
    with recorded, one_sidedness(model_of(1.0), None, 3.0) as penalties:
        assert penalties == [0]


def test_the_arbitrary_sign_of_a_head_does_not_matter():
    model = model_of(1.0)
    before = penalties_of(model)
    flip_heads(model, torch.tensor([[True, False], [False, True]]))
    torch.testing.assert_close(penalties_of(model), before)


def test_softmax_is_not_penalised_because_no_gradient_could_change_it():
    assert penalties_of(model_of(0.0)).tolist() == [0.0, 0.0]


def test_its_gradient_brings_both_signs_into_use():
    model = model_of(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = penalties_of(model).mean()
    for _ in range(20):
        optimizer.zero_grad()
        penalties_of(model).mean().backward()
        optimizer.step()
    assert penalties_of(model).mean() < 0.5 * before
