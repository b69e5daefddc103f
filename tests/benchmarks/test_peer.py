"""`make peer` reports tests that fail on a signed class alone; the committed table has none."""

import importlib
import io
import sys
import tarfile
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def peer(benchmark):
    return benchmark("peer")


def reported(outcomes, kind: str, test: str, outcome: str, when: str = "call") -> None:
    place = f"peer_tests.py::{kind}Bert::{test}"
    outcomes.pytest_runtest_logreport(pytest.TestReport(place, ("", 0, ""), {}, outcome, None, when))


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_test_that_only_the_stock_class_passes_is_named(peer, outcome):
    outcomes = peer.Outcomes()
    reported(outcomes, "Stock", "test_training", "passed")
    reported(outcomes, "Signed", "test_training", outcome)
    reported(outcomes, "Stock", "test_save_load", "passed")
    reported(outcomes, "Signed", "test_save_load", "passed")
    assert outcomes.worse() == [("Bert test_training", outcome)]


def test_a_test_that_never_ran_on_the_signed_class_is_named(peer):
    outcomes = peer.Outcomes()
    reported(outcomes, "Stock", "test_training", "passed")
    assert outcomes.worse() == [("Bert test_training", "missing")]


def test_a_test_that_neither_class_passes_is_not_named(peer):
    outcomes = peer.Outcomes()
    for kind in ("Stock", "Signed"):
        reported(outcomes, kind, "test_training", "failed")
    assert outcomes.worse() == []


def test_a_test_that_fails_while_it_is_cleaned_up_has_failed(peer):
    outcomes = peer.Outcomes()
    reported(outcomes, "Signed", "test_training", "passed")
    reported(outcomes, "Signed", "test_training", "failed", when="teardown")
    assert outcomes.by_family["Bert"]["Signed"] == {"test_training": "failed"}


def test_mixins_that_the_source_distribution_leaves_out_are_empty(peer, tmp_path, monkeypatch):
    mixin = b"GenerationTesterMixin"
    source = b"from .generation.test_utils import %b\nclass ModelTesterMixin(%b): ...\n" % (mixin, mixin)
    with tarfile.open(tmp_path / "transformers-9.9.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("transformers-9.9/tests/test_modeling_common.py")
        member.size = len(source)
        tar.addfile(member, io.BytesIO(source))
    peer.unpacked(tmp_path / "transformers-9.9.tar.gz", tmp_path / "tests_9_9")
    monkeypatch.syspath_prepend(str(tmp_path))
    common = importlib.import_module("tests_9_9.test_modeling_common")
    assert issubclass(common.ModelTesterMixin, common.GenerationTesterMixin)
    del sys.modules["tests_9_9.test_modeling_common"]


def test_no_signed_class_of_the_published_table_passes_fewer_tests_than_its_stock_class():
    lines = (BENCHMARKS / "results" / "peer.md").read_text(encoding="utf-8").splitlines()
    rows = {cells[1]: [int(cell) for cell in cells[2:8]] for cells in map(split, lines) if len(cells) == 9}
    assert rows.keys() == {"Bert", "Roberta", "DistilBert", "ViT", "Dinov2", "GPT2", "Llama", "Bart", "all"}
    for family, row in rows.items():
        assert row[:3] == row[3:], family
        assert row[0] > 90, family


def split(line: str) -> list[str]:
    cells = [cell.strip() for cell in line.split("|")]
    return cells if cells[2:] and cells[2].isdigit() else []
