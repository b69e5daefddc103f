"""How many texts of the data sets repeat a text of an earlier split?

    python -m research.paper.overlap --data-dir DATA

DATA has a folder for each data set, as README.md describes, and sva_linzen/ and movie_rationales/ with a parquet
file for each split. The paper's sets have the splits of its experiments, before any row is removed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pandas import DataFrame

from benchmarks.measure import save_runs
from benchmarks.runs import check_runs, markdown, where
from hf_bidir.finetune.data.sources import read_table
from research.paper.data import SPLITS, labelled_data
from research.paper.experiments import read_experiments
from research.paper.repeats import SAME_BEGINNING, SHARED_WORDS, find_repeats
from research.runs import command_line

EXPERIMENTS = ["sst", "20news", "20news-bydate", "imdb", "agnews"]
OTHERS = {"AG News, four classes": "ag_news", "agreement": "sva_linzen", "movie rationales": "movie_rationales"}
SHARES = (0.3, 0.5, 0.7, 0.9)
USED = 0.5  # the default of find_repeats
REASONS = [SAME_BEGINNING, SHARED_WORDS]
FILE = Path(__file__).with_name("results") / "overlap.csv"
KEY = ["data", "split", "share"]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds a folder for each data set")
    for data, files, texts in data_sets(parser.parse_args().data_dir):
        for share in SHARES:
            for split, repeats in find_repeats(texts, share).items():
                row = {"data": data, "split": split, "share": share, "rows": len(texts[split]), **repeats.removed}
                save_runs(FILE, KEY, [row | {"duplicates": repeats.duplicates}], *files)
        print(f"{data}: done")


def data_sets(data_dir: Path) -> Iterator[tuple[str, list[Path], dict[str, list[str]]]]:
    """The name, the files and the texts by split of every data set."""
    for one in read_experiments(EXPERIMENTS):
        splits, _ = labelled_data(one, data_dir)
        files = list(one.source_files(data_dir).values())
        yield one.title, files, {split: rows["text"][:] for split, rows in splits.items()}
    for name, folder in OTHERS.items():
        paths = {split: data_dir / folder / f"{split}.parquet" for split in SPLITS}
        yield name, list(paths.values()), {split: read_table(str(path))["text"][:] for split, path in paths.items()}


def reasons(runs: DataFrame) -> str:
    """Every split with its repeated rows by reason and its duplicates."""
    check_runs(runs, ["data"], seeds=0)
    rows = []
    for row in where(in_order(runs), share=USED).to_dict("records"):
        counts = ["", "", ""] if row["split"] == "train" else [removed(row), *(row[reason] for reason in REASONS)]
        rows.append([row["data"], row["split"], f"{row['rows']:,}", *map(str, counts), str(row["duplicates"])])
    header = ["data", "split", "texts", "repeat an earlier split", *REASONS, "duplicates inside the split"]
    return markdown(header, rows)


def shares(runs: DataFrame) -> str:
    """The repeated rows of validation and test, by the share of 8-grams that counts as a repetition."""
    check_runs(runs, ["data"], seeds=0)
    runs = in_order(runs[runs["split"] != "train"])
    rows = [
        [data, split, *(str(removed(found[found["share"] == share].iloc[0])) for share in SHARES)]
        for (data, split), found in runs.groupby(["data", "split"], sort=False)
    ]
    return markdown(["data", "split", *(f"{share:.0%}" for share in SHARES)], rows)


def removed(row: Mapping[str, int]) -> int:
    """The number of rows that repeat an earlier split."""
    return sum(row[reason] for reason in REASONS)


def in_order(runs: DataFrame) -> DataFrame:
    """The rows with the data sets and splits in the order in which they are listed here."""
    names = [*(one.title for one in read_experiments(EXPERIMENTS)), *OTHERS]
    return runs.sort_values(
        ["data", "split"], kind="stable",
        key=lambda column: column.map((names if column.name == "data" else list(SPLITS)).index),
    )  # fmt: skip


if __name__ == "__main__":
    main()
