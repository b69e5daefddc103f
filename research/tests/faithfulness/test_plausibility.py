"""Agreement with people, against counts by hand."""

import numpy as np
import pytest

from research.faithfulness import rationale_auprc, sign_agreement


def test_the_area_is_the_mean_precision_at_every_marked_word():
    # ranked: marked, not, marked, not; precision at the marked ones 1 and 2/3
    assert rationale_auprc([[0.9, 0.7, 0.5, 0.1]], [[1, 0, 1, 0]])[0] == pytest.approx((1 + 2 / 3) / 2)


def test_an_example_without_marks_or_with_nothing_else_has_no_area():
    assert np.isnan(rationale_auprc([[0.1, 0.2], [0.1, 0.2]], [[0, 0], [1, 1]])).all()


def test_neutral_words_do_not_count_and_no_score_agrees_with_nothing():
    assert sign_agreement([[-1.0, 3.0, 0.0, 5.0]], [[-2, 1, 1, 0]])[0] == pytest.approx(2 / 3)
    assert np.isnan(sign_agreement([[1.0]], [[0]])[0])


def test_rows_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="example 1 has 2 scores and 1 polarities; expected one each per token"):
        sign_agreement([[1], [1, 2]], [[1], [1]])
