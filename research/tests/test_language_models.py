"""research/language_models/run.py: the controls match their formulas, rates follow from finished runs."""

from argparse import Namespace

import pytest
import torch

from benchmarks.runs import add_runs, has_run
from research.language_models import run

SCORES = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
KEEP = torch.tensor([True, True, True, False, True])


def test_off_by_one_softmax_has_one_more_key_with_score_and_value_0():
    powers = SCORES.exp().masked_fill(~KEEP, 0)
    expected = powers / (1 + powers.sum(-1, keepdim=True))
    torch.testing.assert_close(run.off_by_one(SCORES, KEEP), expected)
    torch.testing.assert_close(run.off_by_one(SCORES), SCORES.exp() / (1 + SCORES.exp().sum(-1, keepdim=True)))


def test_centred_softmax_sums_to_0_over_the_keys_that_are_kept():
    coefficients = run.centred(SCORES, KEEP)
    torch.testing.assert_close(coefficients.sum(-1), torch.zeros(2, 3))
    assert not coefficients[..., 3].any()
    assert (coefficients < 0).any()


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_rounded_numbers_are_as_many_as_the_bits_allow_and_close(bits):
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    near = run.rounded(values, bits)
    assert len(near.unique()) <= 2**bits - 1
    assert (near - values).abs().max() <= 0.5 * values.abs().max() / (2 ** (bits - 1) - 1) + 1e-6


def test_a_quantised_copy_rounds_weights_and_inputs_of_linear_layers_and_leaves_the_model():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    before, inputs = model[0].weight.detach().clone(), torch.randn(3, 8)
    copy = run.quantised(model, 4)
    expected = run.rounded(inputs, 4) @ run.rounded(before, 4).T + model[0].bias
    torch.testing.assert_close(copy(inputs), expected)
    torch.testing.assert_close(model[0].weight.detach(), before)


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Saves rows of runs where the benchmark looks for them."""
    file = tmp_path / "run.csv"
    monkeypatch.setattr(run, "FILE", file)
    return lambda rows: add_runs(file, rows, run.KEY)


def row(arm, rate, seed, loss):
    return {"size": "small", "arm": arm, "rate": rate, "seed": seed, "tokens": 8_000_000, "loss": loss}


def next_run(**options):
    trials = run.pending(Namespace(tokens=8_000_000, sizes=["small"], **options))
    return next(tuple(trial.values())[:4] for trial in trials if not has_run(run.FILE, **trial))


def test_the_best_rate_of_seed_0_is_run_with_the_other_seeds(save):
    save([row(arm, rate, 0, 4 + rate) for rate in run.RATES for arm in ("softmax", "TanhMax")])
    save([row("softmax", 1e-3, 1, 4.2), row("TanhMax", 1e-3, 1, 3.4), row("TanhMax", 2e-3, 2, 3.0)])
    assert next_run(arms=["softmax", "TanhMax"], seeds=3) == ("small", "softmax", 1e-3, 2)


def test_rates_are_doubled_while_the_highest_is_the_best(save):
    save([row("TanhMax", rate, 0, 5 - rate) for rate in run.RATES])
    assert next_run(arms=["TanhMax"], seeds=2) == ("small", "TanhMax", 8e-3, 0)
    save([row("TanhMax", 8e-3, 0, 9.0)])
    assert next_run(arms=["TanhMax"], seeds=2) == ("small", "TanhMax", 4e-3, 1)
