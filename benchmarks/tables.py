"""Fill the tables of the documentation in place, from the csv files of runs, or print one table.

    make tables                          # or: python -m benchmarks.tables
    python -m benchmarks.tables --check  # change nothing; exit with 5 and print the differences, if there are any
    python -m benchmarks.tables research.conversions.report.encoder research/conversions/results/conversions.csv

Pages are written by hand. A table stands between two comments that cog reads (https://cog.readthedocs.io):

    <!--[[[cog table("MODULE.FUNCTION", "FILE.csv", ARGUMENTS) ]]]-->
    <!--[[[end]]]-->

The function makes a Markdown table from the rows of the file, or finds its rows itself if no file is named. Printed, it
takes the same arguments as words.
"""

import ast
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from pkgutil import resolve_name

from cogapp import Cog

from benchmarks.runs import read_runs

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (".", "docs", "benchmarks", "benchmarks/results", "research", "research/*", "model_cards/*")


def main(*options: str) -> int:
    """The exit status of cog on all pages with tables, 0 if all is well: `-r` writes them, `--check` compares."""
    os.chdir(ROOT)
    return Cog().main(["cog", "-P", "-p", "from benchmarks.tables import table", "--verbosity=1", *options, *pages()])


def pages() -> list[str]:
    """The pages with tables that are filled in."""
    files = (file for folder in FOLDERS for file in ROOT.glob(f"{folder}/*.md"))
    return sorted(str(file.relative_to(ROOT)) for file in files if "[[[cog" in file.read_text(encoding="utf-8"))


def table(function: str, file: str | None = None, *arguments: object, **options: object) -> None:
    """Print the table that `function`, such as "benchmarks.healing.table", makes from a csv file of the repository."""
    rows = () if file is None else (read_runs(ROOT / file),)
    print(f"\n{resolve_name(function)(*rows, *arguments, **options).strip()}\n")


def value(word: str) -> object:
    """A word of the command line as a number, list or tuple, if it is one."""
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word


def command() -> int:
    """The exit status of the command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, print the differences")
    parser.add_argument("function", nargs="?", help="the function of one table, to be printed")
    parser.add_argument("arguments", nargs="*", help="its csv file, if it takes one, and its other arguments")
    options = parser.parse_args()
    if not options.function:
        return main(*(["--check", "--diff"] if options.check else ["-r"]))
    has_file = bool(options.arguments) and options.arguments[0].endswith(".csv")
    file = options.arguments.pop(0) if has_file else None
    table(options.function, file, *map(value, options.arguments))
    return 0


if __name__ == "__main__":
    sys.exit(command())
