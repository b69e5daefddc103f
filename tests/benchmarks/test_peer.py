"""`make peer` names tests that fail on a signed class alone; the committed table has none."""

import pytest

from benchmarks import peer
from benchmarks.measure import RESULTS


@pytest.mark.parametrize(
    ("signed", "worse"), [("failed", "failed"), ("skipped", "skipped"), (None, "missing"), ("passed", None)]
)
def test_a_test_that_only_the_stock_class_passes_is_named(signed, worse):
    outcomes = peer.Outcomes()
    reports = {"StockBert::test_training": "passed", "SignedBert::test_training": signed}
    reports |= {"StockBert::test_none": "failed", "SignedBert::test_none": "failed"}
    for test, outcome in reports.items():
        if outcome:
            report = pytest.TestReport(f"peer_tests.py::{test}", ("", 0, ""), {}, outcome, None, "call")
            outcomes.pytest_runtest_logreport(report)
    assert outcomes.worse() == ([("Bert test_training", worse)] if worse else [])


def test_no_signed_class_of_the_published_table_passes_fewer_tests_than_its_stock_class():
    rows = [line.split("|")[1:-1] for line in (RESULTS / "peer.md").read_text(encoding="utf-8").splitlines()]
    numbers = {row[0].strip(): list(map(int, row[1:])) for row in rows[8:] if row}
    assert len(numbers) == 16
    for family, counts in numbers.items():
        assert counts[:3] == counts[3:], family
        assert counts[0] > 70, family
