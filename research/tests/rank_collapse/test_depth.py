"""Means of residuals, and when two points meet."""

import pandas as pd
import pytest
import torch

from research.rank_collapse import circle, depth


def test_the_mean_residual_is_geometric_and_lies_in_its_interval():
    mean, low, high = depth.mean_and_interval([1e-2, 1e-4, 1e-3])
    assert mean == pytest.approx(1e-3)
    assert low < mean < high
    assert low * high == pytest.approx(mean**2)  # symmetrical on a logarithmic scale


def test_a_residual_within_rounding_is_called_so():
    runs = pd.DataFrame({"residual_1": [3e-16, 2e-16, 0.0]})
    assert depth.residual(runs, 1) == "rounding"


def test_points_meet_at_the_first_step_at_which_they_are_equal():
    points = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).repeat(201, 1, 1)
    assert circle.measured(points)["meeting"] is None
    points[7:] = 0.5
    assert circle.measured(points)["meeting"] == 7
