"""Numbers in sentences, which no table carries, are those of the csv files of runs."""

import re

import pytest

from benchmarks.runs import read_runs, where
from benchmarks.tables import ROOT

CONVERSIONS = read_runs(ROOT / "research/conversions/results/conversions.csv")
HEALED = 100 * where(CONVERSIONS, task="sst2", variant="signs").mean(numeric_only=True)
NUMBER = r"([-+\d.]+)"
QUOTED = {  # by page: sentences with their numbers left out, and the numbers
    "README.md": {
        "MiniLM, healed on SST-2, has {} % test accuracy.": [f"{HEALED.accuracy:.1f}"],
        "Without its negative coefficients ({} %) the accuracy is {} %,": [
            f"{HEALED.negative_share:.0f}",
            f"{HEALED.accuracy_without_negatives:.0f}",
        ],
    },
}


@pytest.mark.parametrize("page", QUOTED)
def test_the_numbers_quoted_in_a_page_are_those_of_its_data(page):
    text = " ".join((ROOT / page).read_text("utf-8").split())
    for sentence, numbers in QUOTED[page].items():
        quoted = re.search(re.escape(sentence).replace(r"\{\}", NUMBER), text)
        assert quoted, f"{page} has no sentence like: {sentence}"
        assert list(quoted.groups()) == numbers, f"{page}: {sentence}"
