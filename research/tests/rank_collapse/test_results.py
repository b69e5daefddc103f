"""Means of residuals, when two points meet, and the tasks of trained networks."""

import pandas as pd
import pytest
import torch

from research.rank_collapse import circle, depth
from research.rank_collapse.trained_paths import GRID, convex_hull, memorization, sorting


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


def test_sorted_symbols_are_in_order_and_the_same():
    tokens, labels = sorting(20)
    assert labels.tolist() == [sorted(row) for row in tokens.tolist()]
    assert sorting(20)[0].equal(tokens)
    assert not sorting(20, seed=1)[0].equal(tokens)


def test_corners_of_the_hull_are_what_no_line_through_two_others_can_cut_off():
    tokens, labels = convex_hull(30)
    for row, marks in zip(tokens.tolist(), labels.tolist(), strict=True):
        points = [divmod(token, GRID) for token in row]
        assert len(set(points)) == len(points)
        assert sum(marks) >= 3
        corners = [p for p, mark in zip(points, marks, strict=True) if mark]
        for point, mark in zip(points, marks, strict=True):
            others = [p for p in corners if p != point]
            assert mark != inside(point, others)


def inside(point, corners):
    """Whether a point lies in the hull of others: no direction has it strictly ahead of all of them."""
    angles = torch.arange(0, 2 * torch.pi, 0.001, dtype=torch.float64)
    directions = torch.stack([angles.cos(), angles.sin()])
    ahead = torch.tensor(point, dtype=torch.float64) @ directions
    return not bool((ahead > (torch.tensor(corners, dtype=torch.float64) @ directions).amax(0) + 1e-6).any())


def test_remembered_classes_are_random_and_stay_the_same():
    tokens, labels = memorization(200)
    assert labels.float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert memorization(200)[1].equal(labels)
    assert tokens.max() < GRID * GRID


def test_points_on_the_circle_are_opposite_and_change_places():
    points = circle.circle(100)
    assert points.shape == (101, 2, 2)
    torch.testing.assert_close(points[:, 0], -points[:, 1])
    torch.testing.assert_close(points.norm(dim=-1), torch.full((101, 2), circle.RADIUS))
    torch.testing.assert_close(points[0], points[-1].flip(0), atol=1e-6, rtol=0)
    assert points[1, 0, 1] > 0  # counter-clockwise
