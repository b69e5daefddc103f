"""The activations against float64 arithmetic and against their defining properties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from torch.autograd import gradcheck, gradgradcheck

from hf_bidir import register_attn_activation, tanhmax
from hf_bidir.modeling import activations
from hf_bidir.modeling.activations import balanced, get_attn_activation

rows = st_numpy.arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.floats(-30, 30)
).map(torch.from_numpy)  # fmt: skip
masses = st.floats(1e-6, 1.0)
quick = settings(max_examples=30, deadline=None)


def defined(scores: torch.Tensor, mass: float) -> torch.Tensor:
    """TanhMax by its definition, in float64 and without any trick."""
    positive, negative = scores.exp(), mass * (-scores).exp()
    return (positive - negative) / (positive + negative).sum(-1, keepdim=True)


@quick
@given(rows, masses)
def test_tanhmax_is_its_definition_odd_softmax_at_zero_and_sums_to_at_most_one(scores, mass):
    coefficients = tanhmax(scores, negative_mass=mass)
    torch.testing.assert_close(coefficients, defined(scores, mass), rtol=1e-9, atol=1e-12)
    assert (coefficients.abs().sum(-1) <= 1 + 1e-12).all()
    assert torch.equal(tanhmax(-scores), -tanhmax(scores))
    for activation in (tanhmax, balanced):
        torch.testing.assert_close(activation(scores, negative_mass=0.0), scores.softmax(-1), rtol=0, atol=0)


@quick
@given(rows, masses, st.floats(-20, 20))
def test_balanced_rows_sum_to_one_minus_the_mass_whatever_is_added_to_all_scores(scores, mass, constant):
    coefficients = balanced(scores, negative_mass=mass)
    totals = coefficients.sum(-1)
    torch.testing.assert_close(totals, torch.full_like(totals, 1 - mass), rtol=0, atol=1e-12)
    torch.testing.assert_close(balanced(scores + constant, negative_mass=mass), coefficients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@quick
@given(data=st.data())
def test_every_finite_score_gives_finite_coefficients_and_gradients(dtype, data):
    largest = torch.finfo(dtype).max
    values = data.draw(st.lists(st.floats(-largest, largest, width=32), min_size=1, max_size=8))
    scores = torch.tensor(values, dtype=torch.float64).clamp(-largest, largest).to(dtype).requires_grad_()
    coefficients = tanhmax(scores)
    coefficients.sum().backward()
    assert coefficients.isfinite().all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("size", [1e-6, 1e-2, 1.0, 80.0])
def test_fp32_keeps_six_digits_at_every_magnitude_of_the_scores(size):
    scores = size * torch.linspace(-1, 1, 9, dtype=torch.float64)
    exact = torch.sinh(scores) / torch.cosh(scores).sum()
    torch.testing.assert_close(tanhmax(scores.float()).double(), exact, rtol=1e-5, atol=1e-38)


@pytest.mark.parametrize("activation", [tanhmax, balanced])
@pytest.mark.parametrize("mass", [0.4, 0.01])
def test_gradients_of_scores_and_mass_pass_gradcheck_with_a_mask(activation, mass):
    torch.manual_seed(0)
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    mass = torch.tensor(mass, dtype=torch.float64, requires_grad=True)
    keep = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    for check in (gradcheck, gradgradcheck):
        assert check(lambda s, m: activation(s, keep, negative_mass=m), (scores, mass))


def test_each_head_can_have_its_own_negative_mass():
    scores = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    masses = torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1)
    torch.testing.assert_close(tanhmax(scores, negative_mass=masses), defined(scores, masses))


@pytest.mark.parametrize("name", ["softmax", "tanh", "tanhmax", "balanced"])
@quick
@given(data=st.data())
def test_a_masked_key_equals_an_absent_key(name, data):
    scores = data.draw(rows)
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=scores.shape[1], max_size=scores.shape[1])))
    fn = get_attn_activation(name)
    coefficients = fn(scores, keep.expand_as(scores))
    if keep.any():
        torch.testing.assert_close(coefficients[:, keep], fn(scores[:, keep]))
    assert (coefficients[:, ~keep] == 0).all()


@pytest.mark.parametrize("name", ["softmax", "tanh", "tanhmax", "balanced"])
def test_a_row_with_nothing_to_attend_to_gives_zeros_and_no_nan_gradient(name):
    scores = torch.randn(2, 4, requires_grad=True)
    keep = torch.tensor([[True] * 4, [False] * 4])
    coefficients = get_attn_activation(name)(scores, keep)
    coefficients.square().sum().backward()
    assert (coefficients[1] == 0).all()
    assert (scores.grad[1] == 0).all()
    assert scores.grad[0].abs().sum() > 0


def test_the_keys_may_lie_in_any_dimension():
    scores = torch.randn(3, 4, 5)
    torch.testing.assert_close(tanhmax(scores, dim=1), tanhmax(scores.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("mass", [-0.1, 1.5, math.nan, torch.tensor([0.2, 1.2])])
def test_a_negative_mass_outside_0_1_is_refused(mass):
    with pytest.raises(ValueError, match=r"negative mass must lie in \[0, 1\].*got"):
        tanhmax(torch.zeros(2), negative_mass=mass)


def test_a_registered_activation_is_found_by_its_name_and_a_taken_name_is_refused(monkeypatch):
    monkeypatch.setattr(activations, "_ACTIVATIONS", dict(activations._ACTIVATIONS))
    register_attn_activation("uniform", lambda scores, keep=None, dim=-1: torch.ones_like(scores) / scores.shape[dim])
    assert get_attn_activation("uniform")(torch.zeros(2, 4))[0, 0] == 0.25
    with pytest.raises(ValueError, match="already registered"):
        register_attn_activation("softmax", lambda scores, keep=None, dim=-1: scores)
