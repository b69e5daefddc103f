"""Tables of benchmarks over seeds: what they compare, and what they refuse."""

from itertools import product

import pandas as pd
import pytest

from hf_bidir.common.errors import InputError

VERSIONS = {"versions": "torch 2.14"}


@pytest.fixture
def table(benchmark):
    """Makes the table of a benchmark from rows, as lists of cells."""

    def make(name, rows, *arguments, of="table"):
        text = getattr(benchmark(name), of)(pd.DataFrame(rows), *arguments)
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]

    return make


def recurrent_runs():
    better = {"tanhmax": 0.02, "softmax": 0.0}
    for activation, seed in product(better, range(3)):
        accuracy = 0.8 + 0.01 * seed + better[activation] + 0.005 * seed * better[activation] / 0.02
        run = {"data": "sst2", "selection": "soft", "activation": activation, "seed": seed}
        yield run | {"accuracy": accuracy, "worst_recall": accuracy - 0.1} | VERSIONS


def test_activations_of_recurrent_models_are_paired_by_seed(table):
    header, _, row = table("recurrent", list(recurrent_runs()), 3)
    cells = dict(zip(header, row, strict=True))
    # differences of 2, 2.5 and 3 points: their mean ± 4.303 * 0.5 / sqrt(3)
    assert (cells["seeds"], cells["TanhMax"], cells["difference"]) == ("3", "83.5 ± 1.5", "+2.5 [+1.3, +3.7]")


def test_a_missing_seed_of_a_recurrent_model_is_named(table):
    with pytest.raises(InputError, match="sst2, soft, tanhmax: 3; sst2, soft, softmax: 3"):
        table("recurrent", list(recurrent_runs()), 4)


def test_p_values_of_several_metrics_are_corrected_for_their_number(table):
    metrics = ("accuracy", "macro_f1", "recall_negative", "recall_positive")
    rows = [
        {"activation": activation, "seed": seed}
        | {metric: 0.7 + 0.01 * place + bonus * (1 + 0.1 * seed) for place, metric in enumerate(metrics)}
        | VERSIONS
        for activation, bonus in (("tanhmax", 0.02), ("softmax", 0.0))
        for seed in range(3)
    ]
    header, _, *lines = table("sst2_from_scratch", rows, 3)
    assert {line[header.index("p")] for line in lines} == {"0.011"}  # 4 * 0.0027


def test_a_healing_table_has_the_students_of_one_model_and_no_empty_columns(table):
    healed = {"student": "centred, healed", "steps": 30, "relative_error": 0.038, "perplexity": None}
    rows = [
        healed
        | {"model": "minilm", "seed": 0, "worst_layer": 0.06, "negative_share": 0.3, "minutes": 2.8, "threads": 1},
        {"model": "decoder", "student": "stock softmax", "steps": 0, "seed": 0, "perplexity": 66.3},
    ]
    header, _, *lines = table("healing", [row | {"accuracy": None} | VERSIONS for row in rows], "minilm")
    assert "perplexity" not in header
    assert lines == [["centred, healed", "30", "3.80%", "6.00%", "30%", "2.8", "1"]]


def mechanism_runs(seeds=range(3)):
    scores = {("general", "tanhmax"): 0.9, ("general", "softmax"): 0.8, ("no attention", "none"): 0.5}
    for (mechanism, activation), seed in product(scores, seeds):
        run = {"mechanism": mechanism, "activation": activation, "seed": seed} | VERSIONS
        for length in (20, 40, 80):
            score = scores[mechanism, activation] - (0.1 + 0.01 * seed) * (mechanism != "general") * length / 20
            yield run | {"task": f"dates-{length}", "score": score}


@pytest.mark.parametrize("activation", ["tanhmax", "softmax"])
def test_the_gain_of_attention_is_against_the_decoder_without_it_at_the_same_length(
    table, benchmark, monkeypatch, activation
):
    monkeypatch.setattr(
        benchmark("mechanisms_report"), "LONGER", {f"dates-{length}": length for length in (20, 40, 80)}
    )
    _, _, *lines = table("mechanisms_report", list(mechanism_runs()), of="gains")
    better = {"tanhmax": 40, "softmax": 30}[activation]
    gains = [line[3].partition(" ")[0] for line in lines if line[2] == activation]
    assert gains == [f"+{better + (10 + 1) * length // 20}.0" for length in (20, 40, 80)]


def test_a_missing_seed_of_a_mechanism_is_named(table):
    with pytest.raises(InputError, match="dates-80, no attention, none: 2"):
        table("mechanisms_report", list(mechanism_runs(range(2))), of="lengths")
