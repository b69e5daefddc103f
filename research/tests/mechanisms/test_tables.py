"""Tables of recurrent models over seeds: what they compare, and what they refuse."""

from itertools import product

import pandas as pd
import pytest

from research.mechanisms import recurrent, report

VERSIONS = {"versions": "torch 2.14"}


def cells_of(text: str) -> list[list[str]]:
    """The cells of a Markdown table by line."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def recurrent_runs():
    better = {"tanhmax": 0.02, "softmax": 0.0}
    for activation, seed in product(better, range(3)):
        accuracy = 0.8 + 0.01 * seed + better[activation] + 0.005 * seed * better[activation] / 0.02
        run = {"data": "sst2", "selection": "soft", "activation": activation, "seed": seed}
        yield run | {"accuracy": accuracy, "worst_recall": accuracy - 0.1} | VERSIONS


def test_activations_of_recurrent_models_are_paired_by_seed():
    header, _, row = cells_of(recurrent.table(pd.DataFrame(recurrent_runs()), 3))
    cells = dict(zip(header, row, strict=True))
    # differences of 2, 2.5 and 3 points: their mean ± 4.303 * 0.5 / sqrt(3)
    assert (cells["seeds"], cells["TanhMax"], cells["difference"]) == ("3", "83.5 ± 1.5", "+2.5 [+1.3, +3.7]")


def mechanism_runs(seeds=range(3)):
    scores = {("general", "tanhmax"): 0.9, ("general", "softmax"): 0.8, ("no attention", "none"): 0.5}
    for (mechanism, activation), seed in product(scores, seeds):
        run = {"mechanism": mechanism, "activation": activation, "seed": seed} | VERSIONS
        for length in (20, 40, 80):
            score = scores[mechanism, activation] - (0.1 + 0.01 * seed) * (mechanism != "general") * length / 20
            yield run | {"task": f"dates-{length}", "score": score}


@pytest.mark.parametrize("activation", ["tanhmax", "softmax"])
def test_the_gain_of_attention_is_against_the_decoder_without_it_at_the_same_length(monkeypatch, activation):
    monkeypatch.setattr(report, "LONGER", {f"dates-{length}": length for length in (20, 40, 80)})
    _, _, *lines = cells_of(report.gains(pd.DataFrame(mechanism_runs())))
    better = {"tanhmax": 40, "softmax": 30}[activation]
    gains = [line[3].partition(" ")[0] for line in lines if line[2] == activation]
    assert gains == [f"+{better + (10 + 1) * length // 20}.0" for length in (20, 40, 80)]
