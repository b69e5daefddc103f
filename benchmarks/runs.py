"""Runs as rows of a csv file: settings, seed, every metric and the versions. Tables are made from these rows alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from benchmarks.seeds import Comparison, compare, holm, mean_and_deviation
from hf_bidir.common.errors import InputError
from hf_bidir.common.files import replacing

if TYPE_CHECKING:  # pandas is an extra, and `markdown` does without
    import pandas as pd

SEED, VERSIONS, DATA = "seed", "versions", "data_version"
PAIR = ("tanhmax", "softmax")  # what tables compare, the first minus the second


def read_runs(path: Path) -> "pd.DataFrame":
    """The rows of a csv file of runs; an empty table if there is no file. Cells without a number are NaN."""
    import pandas as pd

    return pd.read_csv(path, keep_default_na=False, na_values=[""]) if path.is_file() else pd.DataFrame()


def add_runs(path: Path, rows: Sequence[Mapping[str, object]], key: Sequence[str]) -> None:
    """Add rows to a csv file, in place of rows with the same values of `key`; several processes may do so at once."""
    import pandas as pd

    with FileLock(f"{path}.lock"):
        runs = pd.concat([read_runs(path), pd.DataFrame(rows)]).drop_duplicates(list(key), keep="last")
        with replacing(path) as temporary:
            runs.sort_values(list(key), kind="stable").to_csv(temporary, index=False)


def has_run(path: Path, **settings: object) -> bool:
    """Whether the file has a row with these settings."""
    runs = read_runs(path)
    return not runs.empty and all(name in runs for name in settings) and not where(runs, **settings).empty


def where(runs: "pd.DataFrame", **settings: object) -> "pd.DataFrame":
    """The rows with these settings, ordered by seed."""
    for name, value in settings.items():
        runs = runs[runs[name] == value]
    return runs.sort_values(SEED, kind="stable") if SEED in runs else runs


def check_runs(runs: "pd.DataFrame", by: Sequence[str], seeds: int) -> None:
    """Check that rows may share a table.

    Args:
        runs: the rows.
        by: the columns that identify a group of seeds; the first one also identifies the data.
        seeds: the number of seeds of every group, counted from 0.

    Raises:
        InputError: there are no rows; seeds are missing (each is named), or versions of code or data are mixed.
    """
    if runs.empty:
        raise InputError("expected rows of runs; the file has none. Run its benchmark first")
    missing = []
    for group, rows in runs.groupby(list(by), sort=False):
        if lacking := sorted(set(range(seeds)) - set(rows[SEED])):
            missing.append(f"{', '.join(map(str, group))}: {', '.join(map(str, lacking))}")
    if missing:
        raise InputError(f"expected all seeds of every row of the table; missing are {'; '.join(missing)}. Run them")
    parts = [(VERSIONS, runs)] if VERSIONS in runs else []
    parts += [(DATA, rows) for _, rows in runs.groupby(by[0])] if DATA in runs else []
    for column, rows in parts:
        if len(values := rows[column].dropna().unique()) > 1:
            raise InputError(f"expected one value of {column}; got {' and '.join(values)}. Repeat the other runs")


def spread(runs: "pd.DataFrame", column: str, scale: float = 1, digits: int = 1) -> str:
    """Mean ± standard deviation over the rows that have a number, with their count if some have none."""
    if column not in runs or not (values := [scale * value for value in runs[column].dropna()]):
        return ""
    return mean_and_deviation(values, digits) + ("" if len(values) == len(runs) else f" ({len(values)} of {len(runs)})")


def comparison(first: "pd.DataFrame", second: "pd.DataFrame", column: str, scale: float = 1) -> Comparison | None:
    """`first` minus `second`, paired by the seeds that both have; None if there are none."""
    if first.empty or second.empty or column not in first:
        return None
    pairs = first[[SEED, column]].merge(second[[SEED, column]], on=SEED, suffixes=(" 1", " 2")).dropna()
    if pairs.empty:
        return None
    return compare(list(scale * pairs[f"{column} 1"]), list(scale * pairs[f"{column} 2"]))


def comparisons(
    runs: "pd.DataFrame", by: Sequence[str], between: str, pair: tuple[str, str], columns: Mapping[str, float]
) -> dict[tuple, Comparison]:
    """The comparisons of one table, with p-values corrected for their number.

    Args:
        runs: the rows.
        by: the columns that identify a row of the table.
        between: the column with the compared variants.
        pair: its two values, the first minus the second.
        columns: the metrics and the factors that give their units in the table.

    Returns:
        By the values of `by` followed by the metric; pairs without numbers are left out.
    """
    tests = {}
    for group, rows in runs.groupby(list(by), sort=False):
        first, second = (where(rows, **{between: value}) for value in pair)
        for column, scale in columns.items():
            if (test := comparison(first, second, column, scale)) is not None:
                tests[(*group, column)] = test
    return holm(tests)


def listing(runs: "pd.DataFrame", columns: Mapping[str, tuple[str, str]], **settings: object) -> str:
    """A table with a row for each run with these settings; `columns` have their heading and format."""
    import pandas as pd

    rows = [
        [form.format(row[name]) if pd.notna(row[name]) else "" for name, (_, form) in columns.items()]
        for row in where(runs, **settings).to_dict("records")
    ]
    return markdown([heading for heading, _ in columns.values()], rows)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table without its empty columns."""
    shown = [index for index in range(len(header)) if any(row[index] for row in rows)]
    lines = [[row[index] for index in shown] for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
