"""The numbers of a card over seeds: means of a pair, and their difference."""

import pytest
from scipy.stats import ttest_rel

from hf_bidir.hub.card_numbers import differences, headline, recalls_in, results_table

SCORES = {"accuracy": 0.8125, "macro_f1": 0.8, "recall_good|fine": 0.725}
SEEDS = {
    "seeds": [0, 1, 2],
    "this": {
        "name": "signed",
        "scores": {"accuracy": [0.8, 0.9, 1.0], "macro_f1": [0.7, 0.8, 0.9], "recall_good|fine": [0.5, 0.5, 0.5]},
    },
    "counterpart": {
        "name": "plain",
        "scores": {"accuracy": [0.7, 0.7, 0.7], "macro_f1": [0.6, 0.6, 0.6], "recall_good|fine": [0.25, 0.5, 0.75]},
    },
}


def test_overall_metrics_of_a_pair_are_compared_by_seed_and_recalls_only_shown():
    header, accuracy, _, recall = results_table(SCORES, SEEDS, "test", 7)
    assert header[-3:] == ["difference", "p", "g"]
    # 0.2 ± 4.303 * 0.1 / sqrt(3)
    assert accuracy[:5] == ["accuracy", "0.9000 ± 0.1000", "0.8125", "0.7000 ± 0.0000", "+0.2000 [-0.0484, +0.4484]"]
    assert recall == [r"recall of good\|fine", "0.5000 ± 0.0000", "0.7250", "0.5000 ± 0.2500", "", "", ""]


@pytest.mark.parametrize("seeds", [SEEDS, {}], ids=["several seeds", "one run"])
def test_the_recall_of_each_class_is_read_from_the_table(seeds):
    rows = results_table(SCORES, seeds, "test", 7)
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    assert recalls_in(text) == {"recall_good|fine": 0.725}


def test_p_values_of_a_pair_are_corrected_for_the_number_of_overall_metrics():
    found = differences(SEEDS)
    expected = 2 * ttest_rel([0.8, 0.9, 1.0], [0.7, 0.7, 0.7]).pvalue
    assert {name: one.p_value for name, one in found.items()} == pytest.approx(dict.fromkeys(found, expected))


def test_one_seed_has_no_deviation_and_no_test():
    sides = {name: SEEDS[name] | {"scores": {"accuracy": [0.75]}} for name in ("this", "counterpart")}
    seeds = SEEDS | sides | {"seeds": [0]}
    header, row = results_table(SCORES, seeds, "test", 0)
    assert header == ["metric", "signed, 1 seed", "this checkpoint (seed 0)", "plain, 1 seed"]
    assert row == ["accuracy", "0.7500", "0.8125", "0.7500"]
    assert headline(SCORES, seeds, 0) == "**Accuracy 0.7500** (one seed)"
