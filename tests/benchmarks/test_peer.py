"""`make peer` names tests that fail on a signed class alone; the committed table has none."""

import io
import tarfile

import pytest

from benchmarks import peer
from benchmarks.measure import RESULTS


@pytest.mark.parametrize(
    ("signed", "worse"), [("failed", "failed"), ("skipped", "skipped"), (None, "missing"), ("passed", None)]
)
def test_a_test_that_only_the_stock_class_passes_is_named(signed, worse):
    outcomes = peer.Outcomes()
    reports = {("Stock", "test_training"): "passed", ("Signed", "test_training"): signed}
    reports |= dict.fromkeys([("Stock", "test_none"), ("Signed", "test_none")], "failed")
    for (kind, test), outcome in reports.items():
        if outcome:
            place = f"peer_tests.py::{kind}Bert::{test}"
            outcomes.pytest_runtest_logreport(pytest.TestReport(place, ("", 0, ""), {}, outcome, None, "call"))
    assert outcomes.worse() == ([("Bert test_training", worse)] if worse else [])


def test_mixins_that_the_source_distribution_leaves_out_are_empty(tmp_path):
    source = b"from .generation.test_utils import Mixin\nclass ModelTesterMixin(Mixin): ...\n"
    with tarfile.open(tmp_path / "transformers-9.9.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("transformers-9.9/tests/test_modeling_common.py")
        member.size = len(source)
        tar.addfile(member, io.BytesIO(source))
    peer.unpacked(tmp_path / "transformers-9.9.tar.gz", tmp_path / "tests")
    assert (tmp_path / "tests/generation/test_utils.py").read_text() == "class Mixin:\n    pass\n"
    assert (tmp_path / "tests/test_modeling_common.py").read_bytes() == source


def test_no_signed_class_of_the_published_table_passes_fewer_tests_than_its_stock_class():
    lines = (RESULTS / "peer.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    rows = {family: [int(number) for number in numbers] for family, *numbers in cells[2:]}
    assert len(rows) == 16
    for family, row in rows.items():
        assert row[:3] == row[3:], family
        assert row[0] > 70, family
