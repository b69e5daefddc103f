"""Faithfulness by layer: what its table has, and what it refuses."""

import pandas as pd
import pytest

from hf_bidir.common.errors import InputError
from research.faithfulness.by_layer import BY_LAYER, table


def rows(seeds: int) -> pd.DataFrame:
    return pd.DataFrame(
        {"task": task, "model": model, "seed": seed, "reference": "erasure", "measure": measure, "layer_0": seed}
        for task in ("sst2", "agreement")
        for model in ("softmax", "converted")
        for seed in range(seeds)
        for measure in BY_LAYER
    )


def test_a_table_has_a_row_for_each_task_model_and_measure_and_names_missing_seeds():
    assert len(table(rows(3), "erasure").splitlines()) == 2 + 2 * 2 * len(BY_LAYER)
    with pytest.raises(InputError, match=r"missing are sst2, softmax, erasure, attention: 2"):
        table(rows(2), "erasure")
