"""Numbers in sentences, which no table carries, are those of the csv files of runs."""

import re

import pytest

from benchmarks.runs import read_runs, where
from benchmarks.tables import ROOT

CONVERSIONS = where(read_runs(ROOT / "research/conversions/results/conversions.csv"), task="sst2")
HEALED = where(CONVERSIONS, variant="signs")

QUOTED = {  # by page: sentences with their numbers left out, and the numbers
    "README.md": {
        "MiniLM, healed on SST-2, has {} % test accuracy,": [f"{100 * HEALED.accuracy.mean():.1f}"],
        "Without its negative coefficients ({} %) the accuracy is {} %,": [
            f"{100 * HEALED.negative_share.mean():.0f}",
            f"{100 * HEALED.accuracy_without_negatives.mean():.0f}",
        ],
    },
}


@pytest.mark.parametrize("page", QUOTED)
def test_the_numbers_quoted_in_a_page_are_those_of_its_data(page):
    text = (ROOT / page).read_text("utf-8")
    for sentence, expected in QUOTED[page].items():
        number = r"([-+\d.]+(?:\s+\[[^\]]+\])?)"
        found = re.search(
            number.join(r"\s+".join(map(re.escape, part.split(" "))) for part in sentence.split("{}")), text
        )
        assert found, f"{page} has no sentence like: {sentence}"
        line, numbers = text[: found.start()].count("\n") + 1, [" ".join(one.split()) for one in found.groups()]
        assert numbers == expected, f"{page}, line {line}: {sentence!r} has {numbers}; its data give {expected}"
