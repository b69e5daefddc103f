"""The tables of the report."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from hf_bidir.common.files import write_json
from hf_bidir.paper.cells import MEASURES, Cell
from hf_bidir.paper.experiments import Experiment
from hf_bidir.paper.report import _by_example, _range, _table, interval, polar_separation, write_report
from hf_bidir.paper.settings import Settings


def test_polar_words_apart_from_neutral_ones_are_counted_in_standard_errors():
    def entry(values):
        return [len(values), 0.0, sum(values), sum(v * v for v in values)]

    generator = np.random.default_rng(0)
    kinds = {"pos0": 0.5, "neg0": -0.3, "word0": 0.1}
    words = {word: entry(generator.normal(mean, 0.1, 100)) for word, mean in kinds.items()}
    error = (2 * 0.1**2 / 100) ** 0.5
    assert polar_separation(words) == pytest.approx({"pos": 0.4 / error, "neg": -0.4 / error}, rel=0.2)
    assert np.isnan(polar_separation({"pos0": words["pos0"]})["neg"])


def test_an_interval_holds_the_spread_of_texts_and_of_seeds():
    def cells(*rows):
        return [{"tau": list(row)} for row in rows]

    assert interval(cells([0.25, 0.25], [0.25, 0.25]), "tau") == "0.250 [0.250, 0.250]"
    assert interval(cells([0, 0], [1, 1]), "tau") == "0.500 [0.000, 1.000]"  # seeds differ
    assert interval(cells([0, 1], [0, 1]), "tau") == "0.500 [0.000, 1.000]"  # texts differ
    assert interval(cells([0.5, None], [0.5, None]), "tau") == "0.500 [0.500, 0.500]"
    assert interval(cells([None, None]), "tau") == "not defined"
    assert interval(cells([0.5]), "another") == ""


def test_shares_of_signs_show_how_far_seeds_differ():
    assert _range([0.5, 1.0, None]) == "0.750 (0.50 to 1.00)"
    assert _range([None]) == ""


def test_the_papers_numbers_stand_above_ours():
    one = Experiment("e", "E", {}, [1.0], published={"softmax": {"gradient_tau": 0.84, "accuracy": 98.0}})
    cell = SimpleNamespace(measures={"tau_a_gradient": [0.5, 0.5]})
    table = _by_example([one], {"e": {"softmax": [cell]}}, {"tau_a_gradient": "a, gradient"})
    assert table.splitlines()[2:] == ["| E | softmax, paper | 0.840 |", "| E | softmax | 0.500 [0.500, 0.500] |"]


def test_a_column_without_anything_in_it_is_left_out():
    assert _table(["a", "b", "c"], [["1", "", ""], ["2", "", "3"]]).splitlines() == [
        "| a | c |", "| --- | --- |", "| 1 |  |", "| 2 | 3 |",
    ]  # fmt: skip


def test_models_of_one_layer_and_deep_models_have_separate_tables(tmp_path):
    flat = Experiment("flat", "Flat", {}, [1.0])
    deep = Experiment("deep", "Deep", {}, [1.0], kind="images")
    chosen = {one.name: {"tanhmax": [Cell(one, "tanhmax", 1.0, 0, tmp_path)]} for one in (flat, deep)}
    for one, key in ((flat, "permutation"), (deep, "permutation")):
        folder = chosen[one.name]["tanhmax"][0].folder
        folder.mkdir(parents=True)
        write_json(folder / MEASURES, {key: [0.5]})
    report = write_report([flat, deep], chosen, Settings(tmp_path)).read_text()
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## )", report, re.MULTILINE | re.DOTALL))
    for title, own, other in (
        ("Does the prediction change with the coefficients?", "| Flat |", "| Deep |"),
        ("Deep models", "| Deep |", "| Flat |"),
    ):
        assert own in sections[title]
        assert other not in sections[title]
