"""Generated documents equal what their csv files give."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "benchmarks/pages"


@pytest.fixture
def tables(benchmark):
    return benchmark("tables")


@pytest.mark.parametrize("page", sorted(file.relative_to(PAGES).as_posix() for file in PAGES.rglob("*.md")))
def test_a_generated_document_equals_its_data(tables, page):
    assert (ROOT / page).read_text(encoding="utf-8") == tables.render(page), "run `make tables`"


def test_a_sentence_that_the_data_contradict_stops_the_generation(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "PAGES", tmp_path)
    (tmp_path / "page.md").write_text("TanhMax is better{{ require(1 > 2) }}.")
    with pytest.raises(ValueError, match="the data contradict"):
        tables.render("page.md")
