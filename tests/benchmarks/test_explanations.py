"""The benchmarks of explanations: agreement with labels, tables, and the default that follows from them."""

import numpy as np
import pandas as pd
import pytest


def test_a_score_of_zero_or_of_the_other_sign_disagrees_with_a_polar_word(benchmark):
    pairs = [(np.array([2, -1, 0]), np.array([0.1, 0.2, -3.0])), (np.array([-2, 1]), np.array([-5.0, 0.0]))]
    assert benchmark("explanations_measures").human_sign(pairs)["human_sign"] == 0.5


def test_a_sentence_whose_scores_are_all_equal_has_a_tau_of_0(benchmark):
    pairs = [(np.array([1, -1]), np.array([1.0, -1.0])), (np.array([1, -1]), np.array([0.0, 0.0]))]
    assert benchmark("explanations_measures").mean_tau(pairs) == pytest.approx(0.5)
    assert benchmark("explanations_measures").mean_tau(pairs[1:]) == 0
    assert benchmark("explanations_measures").mean_tau([(np.array([1, 1]), np.array([1.0, -1.0]))]) is None


def measured(**methods):
    """Rows of one model of SST-2, with human sign and deletion by method, on the half that chooses."""
    return pd.DataFrame(
        {
            "task": "sst2", "model": "softmax", "seed": 0, "half": "choice", "method": name, "human_sign": sign,
            "deletion": deletion,
        }
        for name, (sign, deletion) in methods.items()
    )  # fmt: skip


def test_the_order_counts_high_agreement_and_low_deletion_alike(benchmark):
    runs = measured(**{"contributions": (0.7, 0.2), "gradient": (0.4, 0.6), "integrated-gradients": (0.8, 0.3)})
    found = benchmark("explanations_report").ranks(runs, ("sst2",), "choice", list(runs["method"]))
    assert found.loc[0].to_dict() == {"contributions": 0.25, "gradient": 1, "integrated-gradients": 0.25}


def test_only_methods_that_were_measured_everywhere_are_ranked(benchmark):
    runs = measured(**{"contributions": (0.7, 0.2), "gradient": (0.4, 0.6), "erasure": (0.9, 0.1)})
    others = measured(**{"contributions": (0.7, 0.2), "gradient": (0.4, 0.6)}).assign(model="tanhmax")
    found = benchmark("explanations_report").ranks(pd.concat([runs, others]), ("sst2",), "choice", list(runs["method"]))
    assert found.loc[0].to_dict() == {"contributions": 0, "gradient": 1}


def test_models_without_rows_are_named(benchmark):
    missing = benchmark("explanations_report").missing(measured(contributions=(0.7, 0.2)))
    assert missing[0] == "SST-2 (1 of 9 models measured)"
    assert missing[-1] == "Fashion-MNIST (0 of 9 models measured)"


@pytest.mark.parametrize(("best", "beats"), [(0.6, False), (0.7, True)])
def test_raw_signs_beat_a_constant_if_they_do_for_one_model(benchmark, best, beats):
    own = measured(**{"signed-rollout": (best, 0.2)}).assign(model="tanhmax")
    runs = pd.concat([measured(**{"signed-rollout": (0.3, 0.2)}), own]).assign(always_positive=0.64)
    assert benchmark("explanations_report").raw_signs_beat_a_constant(runs) == beats


TEXTS = ("sst2", "agreement", "movies")


@pytest.mark.parametrize(("method", "ties"), [("attnlrp", True), ("contributions", True), ("gradient", False)])
def test_a_method_ties_with_the_first_inside_its_interval(benchmark, method, ties):
    """The first one is ahead of the second in two seeds of three, and the last one is behind in all."""
    scores = [{"attnlrp": (0.9, 0.1), "contributions": (0.8, 0.2), "gradient": (0.1, 0.9)}] * 2
    scores.append({"attnlrp": (0.8, 0.2), "contributions": (0.9, 0.1), "gradient": (0.1, 0.9)})
    rows = [measured(**own).assign(seed=seed, task=task) for seed, own in enumerate(scores) for task in TEXTS]
    assert benchmark("explanations_report").ties_with_first(pd.concat(rows), "texts", method) == ties
