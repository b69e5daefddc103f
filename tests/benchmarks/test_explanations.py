"""The benchmarks of explanations: agreement with labels, tables of complete rows."""

import numpy as np
import pandas as pd
import pytest

from hf_bidir.common.errors import InputError


def test_a_score_of_zero_or_of_the_other_sign_disagrees_with_a_polar_word(benchmark):
    scored = [(np.array([2, -1, 0]), np.array([0.1, 0.2, -3.0])), (np.array([-2, 1]), np.array([-5.0, 0.0]))]
    assert benchmark("human_sentiment").agreement(scored)["human_sign"] == 0.5


def test_sentences_whose_scores_are_all_equal_do_not_enter_the_mean_tau(benchmark):
    scored = [(np.array([1, -1]), np.array([1.0, -1.0])), (np.array([1, -1]), np.array([0.0, 0.0]))]
    assert benchmark("human_sentiment").mean_tau(scored) == pytest.approx(1)
    assert benchmark("human_sentiment").mean_tau(scored[1:]) is None


def rows(measures: tuple[str, ...], seeds: int) -> pd.DataFrame:
    return pd.DataFrame(
        {"task": task, "model": model, "seed": seed, "reference": "erasure", "measure": measure, "layer_0": seed}
        for task in ("sst2", "agreement")
        for model in ("softmax", "converted")
        for seed in range(seeds)
        for measure in measures
    )


def test_a_table_has_a_row_for_each_task_model_and_measure_and_names_missing_seeds(benchmark):
    table, measures = benchmark("faithfulness_by_layer").table, benchmark("faithfulness_by_layer").BY_LAYER
    assert len(table(rows(measures, 3), "erasure").splitlines()) == 2 + 2 * 2 * len(measures)
    with pytest.raises(InputError, match=r"missing are sst2, softmax, erasure, attention: 2"):
        table(rows(measures, 2), "erasure")
