"""Hard attention: the distribution of draws, and an unbiased gradient."""

import pytest
import torch

from hf_bidir.modeling.activations import softmax, tanhmax
from hf_bidir.modeling.hard_selection import Reinforce, select_one

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
def test_the_mean_of_20000_sampled_gradients_is_within_3_standard_errors_of_the_exact_one(activation):
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

    count = 20_000
    rows = scores.expand(count, 1, 4).clone().requires_grad_()
    tables = weight.expand(count, 4, 2).clone().requires_grad_()
    context, log_probability = select_one(activation(rows), tables, sample=True)
    loss = reinforce(losses(context.squeeze(1)), log_probability.squeeze(1)) * count  # its mean, undone
    sampled = torch.cat([g.reshape(count, -1) for g in torch.autograd.grad(loss, [rows, tables])], dim=1)
    error = sampled.std(0) / count**0.5
    assert ((sampled.mean(0) - exact).abs() <= 3 * error + 1e-12).all()


def test_the_value_of_the_loss_is_that_of_the_losses():
    loss = Reinforce()(torch.tensor([1.0, 3.0]), torch.tensor([-0.5, -2.0]))
    assert loss.item() == pytest.approx(2.0)


def test_the_baseline_follows_the_losses_in_training_alone():
    reinforce = Reinforce()
    for _ in range(60):
        reinforce(torch.full((3,), 2.0), torch.zeros(3))
    assert reinforce.baseline.item() == pytest.approx(2.0, abs=0.01)
    reinforce.eval()(torch.full((3,), 50.0), torch.zeros(3))
    assert reinforce.baseline.item() == pytest.approx(2.0, abs=0.01)
