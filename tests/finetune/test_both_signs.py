"""The penalty on heads whose output comes from coefficients of one sign."""

import math

import torch

from hf_bidir import BidirBertConfig, BidirBertModel
from hf_bidir.explain.orient import flip_heads
from hf_bidir.explain.signs import negative_variance_share
from hf_bidir.finetune.both_signs import one_sidedness

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


def test_the_penalty_is_the_distance_of_the_signs_variances_in_logarithms():
    share = negative_variance_share(model_of(1.0), [BATCH])
    expected = (share / (1 - share)).log().abs().mean(-1)
    torch.testing.assert_close(penalties_of(model_of(1.0)), expected, rtol=1e-4, atol=1e-4)


def test_what_each_head_may_differ_is_subtracted():
    share = negative_variance_share(model_of(1.0), [BATCH])
    expected = ((share / (1 - share)).log().abs() - math.log(1.2)).clamp_min(0).mean(-1)
    torch.testing.assert_close(penalties_of(model_of(1.0), 1.2), expected, rtol=1e-4, atol=1e-4)


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
