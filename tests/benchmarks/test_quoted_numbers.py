"""Numbers in sentences, which no table carries, are those of the csv files of runs."""

import re

import pytest

from benchmarks.runs import read_runs, where
from benchmarks.tables import ROOT

CONVERSIONS = read_runs(ROOT / "research/conversions/results/conversions.csv")
SOFTMAX, HEALED = (
    100 * where(CONVERSIONS, task="sst2", **chosen).mean(numeric_only=True)
    for chosen in ({"variant": "softmax"}, {"variant": "tanhmax", "texts": 1500})
)
NUMBER = r"([-+\d.]+)"
QUOTED = {  # by page: sentences with their numbers left out, and the numbers
    "README.md": {
        "predicts the same as its softmax original for {} % of the test sentences,": [f"{HEALED.agreement:.1f}"],
        "with {} % accuracy where that has {} %": [f"{HEALED.accuracy:.1f}", f"{SOFTMAX.accuracy:.1f}"],
        "{} % of its coefficients are negative": [f"{HEALED.negative_share:.0f}"],
    },
}


@pytest.mark.parametrize("page", QUOTED)
def test_the_numbers_quoted_in_a_page_are_those_of_its_data(page):
    text = " ".join((ROOT / page).read_text("utf-8").split())
    for sentence, numbers in QUOTED[page].items():
        quoted = re.search(re.escape(sentence).replace(r"\{\}", NUMBER), text)
        assert quoted, f"{page} has no sentence like: {sentence}"
        assert list(quoted.groups()) == numbers, f"{page}: {sentence}"
