"""Runs as rows of a csv file: settings, seed, every metric and the versions. Tables are made from these rows alone."""

from collections.abc import Hashable, Mapping, Sequence
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
SAME = (VERSIONS, DATA)  # columns with one value per table, where a file has them


def read_runs(path: Path) -> "pd.DataFrame":
    """The rows of a csv file of runs; an empty table if there is no file. Cells without a number are NaN."""
    import pandas as pd

    return pd.read_csv(path, keep_default_na=False, na_values=[""]) if path.is_file() else pd.DataFrame()


def add_runs(path: Path, rows: Sequence[Mapping[str, object]], key: Sequence[str]) -> None:
    """Add rows to a csv file, in place of rows with the same values of `key`; several processes may do so at once."""
    import pandas as pd

    with FileLock(f"{path}.lock"):
        kept = {tuple(str(row[name]) for name in key): row for row in read_runs(path).to_dict("records")}
        kept |= {tuple(str(row[name]) for name in key): dict(row) for row in rows}
        with replacing(path) as temporary:
            pd.DataFrame(kept.values()).sort_values(list(key), kind="stable").to_csv(temporary, index=False)


def has_run(path: Path, **settings: object) -> bool:
    """Whether the file has a row with these settings."""
    runs = read_runs(path)
    return not runs.empty and all(name in runs for name in settings) and not where(runs, **settings).empty


def where(runs: "pd.DataFrame", **settings: object) -> "pd.DataFrame":
    """The rows with these settings, ordered by seed."""
    for name, value in settings.items():
        runs = runs[runs[name] == value]
    return runs.sort_values(SEED, kind="stable") if SEED in runs else runs


def check_runs(
    runs: "pd.DataFrame", by: Sequence[str], seeds: int | Mapping[Hashable, int], same: Sequence[str] = SAME
) -> None:
    """Check that rows may share a table.

    Args:
        runs: the rows.
        by: the columns that identify a group of seeds.
        seeds: the number of seeds of every group, counted from 0; or by the value of the first column of `by`.
        same: columns that must have one value in all rows (`data_version` in all rows of one value of `by[0]`).

    Raises:
        InputError: there are no rows; seeds are missing (each is named), or versions of code or data are mixed.
    """
    if runs.empty:
        raise InputError("expected rows of runs; the file has none. Run its benchmark first")
    missing = [] if isinstance(seeds, int) else _missing_groups(set(runs[by[0]]), seeds)
    for group, rows in runs.groupby(list(by), sort=False):
        needed = seeds if isinstance(seeds, int) else seeds[group[0]]
        if lacking := [seed for seed in range(needed) if seed not in set(rows[SEED])]:
            missing.append(f"{', '.join(map(str, group))}: {', '.join(map(str, lacking))}")
    if missing:
        raise InputError(f"expected all seeds of every row of the table; missing are {'; '.join(missing)}. Run them")
    for column in (name for name in same if name in runs):
        groups = runs.groupby(by[0], sort=False) if column == DATA else [("the table", runs)]
        for name, rows in groups:
            if len(found := rows[column].dropna().unique()) > 1:
                values = " and ".join(map(str, found))
                raise InputError(f"expected one value of {column} in {name}; got {values}. Repeat the other runs")


def _missing_groups(found: set, seeds: Mapping[Hashable, int]) -> list[str]:
    """The groups of which all seeds are missing. Raises InputError for groups whose number of seeds is unknown."""
    if unknown := found - set(seeds):
        raise InputError(f"expected the number of seeds of every group; got none for {', '.join(map(str, unknown))}")
    return [f"{group}: all" for group, count in seeds.items() if count and group not in found]


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
    return compare(list(scale * pairs[f"{column} 1"]), list(scale * pairs[f"{column} 2"]), paired=True)


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
    found = {}
    for group, rows in runs.groupby(list(by), sort=False):
        first, second = (where(rows, **{between: value}) for value in pair)
        for column, scale in columns.items():
            if (one := comparison(first, second, column, scale)) is not None:
                found[(*group, column)] = one
    return holm(found)


def means(runs: "pd.DataFrame", by: Sequence[str], columns: Mapping[str, tuple[str, float, int]], seeds: int) -> str:
    """A table with mean ± standard deviation over seeds; `columns` have their heading, factor and digits."""
    check_runs(runs, by, seeds)
    rows = [
        [*map(str, group), str(len(of)), *(spread(of, name, *form) for name, (_, *form) in columns.items())]
        for group, of in runs.groupby(list(by))
    ]
    return markdown([*by, "seeds", *(heading for heading, *_ in columns.values())], rows)


def listing(runs: "pd.DataFrame", columns: Mapping[str, tuple[str, str]], **settings: object) -> str:
    """A table with a row for each run with these settings; `columns` have their heading and format."""
    import pandas as pd

    rows = [
        [form.format(row[name]) if pd.notna(row[name]) else "" for name, (_, form) in columns.items()]
        for row in where(runs, **settings).to_dict("records")
    ]
    return markdown([heading for heading, _ in columns.values()], rows)


def data_version(*hashes: str) -> str:
    """The content of data files, from their SHA-256, in a few letters."""
    return "sha256:" + ",".join(one[:8] for one in hashes)


def libraries(versions: Mapping[str, str]) -> str:
    """The versions of the libraries that affect numbers, of all versions of a run, without local builds."""
    return ", ".join(f"{name} {versions[name].partition('+')[0]}" for name in ("torch", "transformers"))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table without its empty columns."""
    shown = [index for index in range(len(header)) if any(row[index] for row in rows)]
    lines = [[row[index] for index in shown] for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
