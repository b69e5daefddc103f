"""Generate every document with measured numbers from the csv files of runs.

    make tables                          # or: python benchmarks/tables.py
    python benchmarks/tables.py --check  # exit with 1 if a document differs from its data

benchmarks/pages has a Jinja template of each such document, at the document's path in the repository. In a template,
`module(NAME)` is benchmarks/NAME.py, or research/ROOM/STEM.py for ROOM/STEM; `runs(NAME)` is the csv file of that
module, its FILE, as a pandas table; `table(NAME, of=FUNCTION)` the Markdown table that a function makes from it, in
NAME_report.py, in research/ROOM/report.py for ROOM/run, or else in the module itself. `cell(NAME, COLUMN,
model="TanhMax")` is a cell of benchmarks/results/NAME.md where a benchmark writes that itself, `report(GROUP)` the
report in research/paper/results/GROUP, `pair(NAME)` a checkpoint's accuracy in model_cards/ minus that of its
counterpart, and `require(claim)` stops with an error if the data contradict the sentence beside it.
"""

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.measure import RESULTS, ROOT
from benchmarks.runs import VERSIONS, comparison, comparisons, markdown, read_runs, spread, where
from hf_bidir.common.files import read_json, replacing
from hf_bidir.common.statistics import TESTED_BY_SEED, Comparison, compare, interval, mean_in_interval
from research.paper.report import report_text

PAGES = ROOT / "benchmarks/pages"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a document differs")
    check = parser.parse_args().check
    different = []
    for page in pages():
        file, text = ROOT / page, render(page)
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        different.append(page)
        if not check:
            with replacing(file) as temporary:
                temporary.write_text(text, encoding="utf-8")
    print("\n".join(f"{'differs' if check else 'generated'}: {page}" for page in different) or "nothing differs")
    if check and different:
        sys.exit(1)


def pages() -> list[str]:
    """The paths of all generated documents in the repository."""
    return sorted(file.relative_to(PAGES).as_posix() for file in PAGES.rglob("*.md"))


def render(page: str) -> str:
    """The text of a document. Raises ValueError where a `require` fails."""
    environment = Environment(
        loader=FileSystemLoader(PAGES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    own = (runs, table, cell, report, module, versions, pair, require)
    others = (where, spread, interval, mean_in_interval, comparison, comparisons, markdown)
    environment.globals |= {function.__name__: function for function in (*own, *others)}
    environment.globals["TESTED_BY_SEED"] = TESTED_BY_SEED
    return environment.get_template(page).render()


def runs(name: str) -> pd.DataFrame:
    """The rows of the csv file of a module."""
    return read_runs(module(name).FILE)


def table(name: str, *arguments: object, of: str = "table") -> str:
    """The table that a function makes from the csv file of a module."""
    reported = name.replace("/run", "/report")
    if (Path(__file__).parent / f"{name}_report.py").is_file():
        reported = f"{name}_report"
    return getattr(module(reported), of)(runs(name), *arguments)


def module(name: str) -> ModuleType:
    """The module benchmarks/NAME.py, research/ROOM/STEM.py for ROOM/STEM, or the one with this dotted name."""
    if "/" in name:
        name = f"research.{name.replace('/', '.')}"
    elif (Path(__file__).parent / f"{name}.py").is_file():
        name = f"benchmarks.{name}"
    return importlib.import_module(name)


def report(group: str) -> str:
    """The report of the paper's experiments from the rows in research/paper/results/GROUP."""
    return report_text(ROOT / "research/paper/results" / group)


def cell(name: str, column: str, **row: str) -> str:
    """A cell of the table in benchmarks/results/NAME.md, in the row with these entries."""
    text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    header, _, *rows = (
        [one.strip() for one in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")
    )
    return where(pd.DataFrame(rows, columns=header), **row)[column].item()


def versions(name: str, **settings: object) -> str:
    """The versions of the rows of NAME.csv with these settings."""
    return " and ".join(where(runs(name), **settings)[VERSIONS].unique())


def pair(name: str, metric: str = "accuracy", scale: float = 100) -> Comparison:
    """A metric of a checkpoint in model_cards/ minus that of its counterpart, times `scale`, paired by seed."""
    scores = read_json(ROOT / f"model_cards/{name}/seeds.json")
    ours, theirs = ([scale * one for one in scores[side]["scores"][metric]] for side in ("this", "counterpart"))
    return compare(ours, theirs, paired=True)


def require(claim: bool) -> str:
    """Nothing, if the claim holds in the data."""
    if not claim:
        raise ValueError("the data contradict a sentence of this template; the traceback has its line")
    return ""


if __name__ == "__main__":
    main()
