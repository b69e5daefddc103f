"""Total variation and Jensen-Shannon divergence against their explicit definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from research.faithfulness import jensen_shannon, total_variation

rows = st.lists(st.floats(0.01, 5), min_size=3, max_size=3)


@given(rows, rows)
def test_the_divergence_is_the_square_of_scipys_distance(first, second):
    found = jensen_shannon(torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64))
    assert found.item() >= 0
    theirs = np.nan_to_num(jensenshannon(first, second))  # scipy takes the root of -1e-16, of rows that are equal
    assert found.item() == pytest.approx(theirs**2, abs=1e-12)


def test_signs_do_not_count_for_the_divergence_and_disjoint_attention_is_at_ln_2():
    a, b = torch.tensor([0.5, -0.5, 0.0]), torch.tensor([0.0, 0.0, -0.3])
    assert jensen_shannon(a, a.abs()) == 0
    assert jensen_shannon(a, b).item() == pytest.approx(math.log(2))


def test_no_attention_is_at_a_finite_distance():
    nothing, something = torch.zeros(3), torch.tensor([0.2, 0.0, 0.1])
    assert jensen_shannon(nothing, nothing) == 0
    assert jensen_shannon(nothing, something).item() == pytest.approx(math.log(2) / 2)


def test_the_variation_is_the_most_that_any_set_of_classes_changes_by():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.6, 0.3])
    subsets = [[0], [1], [2], [0, 1], [0, 2], [1, 2]]
    expected = max(abs(p[s].sum() - q[s].sum()) for s in subsets)
    torch.testing.assert_close(total_variation(p, q), expected)


def test_the_gradient_is_finite_where_nothing_is_attended_to():
    a = torch.tensor([0.5, -0.5, 0.0], requires_grad=True)
    jensen_shannon(a, torch.tensor([0.3, 0.7, 0.0])).backward()
    assert a.grad.isfinite().all()
