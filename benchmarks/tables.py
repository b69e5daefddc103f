"""Fill the tables of the documentation in place, from the csv files of runs.

    make tables                          # or: python -m benchmarks.tables
    python -m benchmarks.tables --check  # change nothing; exit with 5 and print the differences, if there are any

Pages are written by hand. A table stands between two comments that cog reads (https://cog.readthedocs.io):

    <!--[[[cog table("MODULE.FUNCTION", "FILE.csv", ARGUMENTS) ]]]-->
    <!--[[[end]]]-->

The function makes a Markdown table from the rows of the file, or finds its rows itself if no file is named.
"""

import os
import sys
from pathlib import Path
from pkgutil import resolve_name

from cogapp import Cog

from benchmarks.runs import read_runs

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    ".", "docs", "benchmarks/results", "research", "research/*/results", "research/paper/results/*", "model_cards/*",
)  # fmt: skip


def main(*options: str) -> int:
    """The exit status of cog on all pages with tables, 0 if all is well: `-r` writes them, `--check` compares."""
    os.chdir(ROOT)
    return Cog().main(["cog", "-P", "-p", "from benchmarks.tables import table", "--verbosity=1", *options, *pages()])


def pages() -> list[str]:
    """The pages with tables that are filled in."""
    found = (file for folder in FOLDERS for file in ROOT.glob(f"{folder}/*.md"))
    return sorted(str(file.relative_to(ROOT)) for file in found if "[[[cog" in file.read_text(encoding="utf-8"))


def table(function: str, file: str | None = None, *arguments: object, **options: object) -> None:
    """Print the table that `function`, such as "benchmarks.healing.table", makes from a csv file of the repository."""
    rows = () if file is None else (read_runs(ROOT / file),)
    print(f"\n{resolve_name(function)(*rows, *arguments, **options).strip()}\n")


if __name__ == "__main__":
    sys.exit(main(*(["--check", "--diff"] if "--check" in sys.argv[1:] else ["-r"])))
