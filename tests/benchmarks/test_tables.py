"""Tables in pages equal what their csv files give."""

import re
import shlex
import sys

import pytest

from benchmarks import tables
from benchmarks.runs import read_runs

FOLDERS = ("docs", "research", "benchmarks")
PAGES = [page for folder in FOLDERS for page in sorted((tables.ROOT / folder).rglob("*.md"))]
COMMAND = re.compile(r"python -m benchmarks\.tables (\w+\.[^`\n]+)")  # those that print one table
PRINTED = [shlex.split(words, comments=True) for page in PAGES for words in COMMAND.findall(page.read_text("utf-8"))]


def test_every_table_equals_its_data(capsys, monkeypatch):
    monkeypatch.chdir(tables.ROOT)
    assert tables.main("--check", "--diff") == 0, f"run `make tables`\n{capsys.readouterr().out}"


def test_a_table_that_differs_from_its_data_is_found_and_mended(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text("seed,accuracy\n0,0.5\n1,0.7\n")
    page = tmp_path / "page.md"
    page.write_text('<!--[[[cog table("pandas.DataFrame.to_csv", "runs.csv") ]]]-->\nold\n<!--[[[end]]]-->\n')
    assert tables.main("--check") == 5
    assert tables.main("-r") == 0
    assert "0,0,0.5" in page.read_text()
    assert tables.main("--check") == 0


def test_the_versions_that_a_page_names_are_those_of_its_files():
    for page in tables.pages():
        text = (tables.ROOT / page).read_text("utf-8")
        files = [read_runs(tables.ROOT / name) for name in re.findall(r'"([\w/]+\.csv)"', text)]
        known = {version for runs in files for version in runs.get("versions", ())}
        named = re.findall(r"torch [\d.]+\d, transformers [\d.]+\d", text)
        assert known.issuperset(named), page


@pytest.mark.parametrize("folder", ["benchmarks/results", "research"])
def test_every_csv_file_of_results_fills_a_table_or_a_page_names_the_command_that_prints_one(folder):
    calls = "".join((tables.ROOT / page).read_text() for page in tables.pages())
    named = set(re.findall(r'"([\w/]+\.csv)"', calls)) | {word for words in PRINTED for word in words}
    assert not {str(file.relative_to(tables.ROOT)) for file in (tables.ROOT / folder).rglob("*.csv")} - named


@pytest.mark.parametrize("words", PRINTED, ids=" ".join)
def test_the_tables_that_pages_name_are_printed(words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tables", *words])
    assert tables.command() == 0
    assert "| --- |" in capsys.readouterr().out
