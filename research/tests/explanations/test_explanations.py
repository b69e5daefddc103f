"""The benchmarks of explanations: agreement with labels, tables, and the default that follows from them."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.runs import read_runs
from hf_bidir.explain.methods import IMAGE_DEFAULT, TEXT_DEFAULT
from research.explanations import measures, report, run


def test_a_score_of_zero_or_of_the_other_sign_disagrees_with_a_polar_word():
    pairs = [(np.array([2, -1, 0]), np.array([0.1, 0.2, -3.0])), (np.array([-2, 1]), np.array([-5.0, 0.0]))]
    assert measures.human_sign(pairs)["human_sign"] == 0.5


def test_a_sentence_whose_scores_are_all_equal_has_a_tau_of_0():
    pairs = [(np.array([1, -1]), np.array([1.0, -1.0])), (np.array([1, -1]), np.array([0.0, 0.0]))]
    assert measures.mean_tau(pairs) == pytest.approx(0.5)
    assert measures.mean_tau(pairs[1:]) == 0
    assert measures.mean_tau([(np.array([1, 1]), np.array([1.0, -1.0]))]) is None


def measured(**methods):
    """Rows of one model of SST-2, with human sign and deletion by method, on the half that chooses."""
    return pd.DataFrame(
        {
            "task": "sst2", "model": "softmax", "seed": 0, "half": "choice", "method": name, "human_sign": sign,
            "deletion": deletion,
        }
        for name, (sign, deletion) in methods.items()
    )  # fmt: skip


def test_the_order_counts_high_agreement_and_low_deletion_alike():
    runs = measured(**{"contributions": (0.7, 0.2), "gradient": (0.4, 0.6), "integrated-gradients": (0.8, 0.3)})
    found = report.ranks(runs, ("sst2",), "choice", list(runs["method"]))
    assert found.loc[0].to_dict() == {"contributions": 0.25, "gradient": 1, "integrated-gradients": 0.25}


def test_only_methods_that_were_measured_everywhere_are_ranked():
    runs = measured(**{"contributions": (0.7, 0.2), "gradient": (0.4, 0.6), "erasure": (0.9, 0.1)})
    others = measured(**{"contributions": (0.7, 0.2), "gradient": (0.4, 0.6)}).assign(model="tanhmax")
    found = report.ranks(pd.concat([runs, others]), ("sst2",), "choice", list(runs["method"]))
    assert found.loc[0].to_dict() == {"contributions": 0, "gradient": 1}


TEXTS = ("sst2", "agreement", "movies")


@pytest.mark.parametrize(("method", "ties"), [("attnlrp", True), ("contributions", True), ("gradient", False)])
def test_a_method_ties_with_the_first_inside_its_interval(method, ties):
    """The first one is ahead of the second in two seeds of three, and the last one is behind in all."""
    scores = [{"attnlrp": (0.9, 0.1), "contributions": (0.8, 0.2), "gradient": (0.1, 0.9)}] * 2
    scores.append({"attnlrp": (0.8, 0.2), "contributions": (0.9, 0.1), "gradient": (0.1, 0.9)})
    rows = [measured(**own).assign(seed=seed, task=task) for seed, own in enumerate(scores) for task in TEXTS]
    assert report.ties_with_first(pd.concat(rows), "texts", method) == ties


@pytest.mark.parametrize(("of", "default"), [("texts", TEXT_DEFAULT), ("images", IMAGE_DEFAULT)])
def test_the_default_method_ties_with_the_best_one(of, default):
    assert report.ties_with_first(read_runs(run.FILE), of, default)
