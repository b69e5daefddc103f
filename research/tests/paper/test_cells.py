"""Cells: trained once; a failed cell does not stop the others."""

import re

import pytest
from transformers import Trainer

from research.paper.cells import Cell, train
from research.paper.rows import failures


def test_a_finished_cell_is_not_trained_again(trained, files, monkeypatch):
    cell, _, _ = trained
    monkeypatch.setattr(Trainer, "train", lambda *a, **k: pytest.fail("it was trained again"))
    train(cell, files)
    assert cell.results["test_accuracy"] > 0.9
    assert failures(cell.experiment, cell.root) == []


def test_a_failed_cell_records_its_error_and_raises_nothing(experiment, files, tmp_path):
    cell = Cell(experiment, "softmax", 1e30, 0, tmp_path)
    train(cell, files)
    assert not cell.trained
    assert re.match(r"InputError: the training loss became (nan|inf)", failures(cell.experiment, cell.root)[0][1])
