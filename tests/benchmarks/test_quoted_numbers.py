"""Numbers in sentences, which no table carries, are those of the csv files of runs."""

import json
import re

import pytest

from benchmarks.runs import comparison, read_runs, where
from benchmarks.tables import ROOT
from hf_bidir.common.statistics import compare

CONVERSIONS = where(read_runs(ROOT / "research/conversions/results/conversions.csv"), task="sst2", split="test")
EXPLAINED = where(read_runs(ROOT / "research/explanations/results/explained_models.csv"), task="sst2")
BERT = where(read_runs(ROOT / "research/paper/results/multilayer/cells.csv"), data="multilayer-bert-short", chosen=True)
HEALED = where(CONVERSIONS, variant="after-tanhmax-signs")
SIGNED_ATTENTION = (ROOT / "research/paper/results/signed_attention.md").read_text("utf-8")


def points(first, second, column="accuracy"):
    return comparison(first, second, column, 100).text()


def seeds(name):
    """The accuracies by seed of a checkpoint in model_cards, minus those of its counterpart, in points."""
    scores = json.loads((ROOT / f"model_cards/{name}/seeds.json").read_text("utf-8"))
    return compare(
        *([100 * one for one in scores[side]["scores"]["accuracy"]] for side in ("this", "counterpart")), True
    )


def share(name):
    found = re.search(rf"{name} predicts .*?orientation share (0\.\d+)", SIGNED_ATTENTION)
    return f"{100 * float(found[1]):.0f}"


QUOTED = {  # by page: sentences with their numbers left out, and the numbers
    "README.md": {
        "it does for {} % of the contribution mass (softmax: {} %;": [share("tanhmax"), share("softmax")],
        "MiniLM, healed on SST-2, has {} % test accuracy;": [f"{100 * HEALED.accuracy.mean():.1f}"],
        "the difference from softmax is {} points (five seeds);": [
            points(HEALED, where(CONVERSIONS, variant="softmax"))
        ],
        "(docs/conversion.md#variants) differ by {} and {}.": [
            points(where(EXPLAINED, model="converted"), where(EXPLAINED, model="softmax")),
            seeds("sst2-minilm-tanhmax").text(),
        ],
        "Without its negative coefficients ({} %) the accuracy is {} %,": [
            f"{100 * HEALED.negative_share.mean():.0f}",
            f"{100 * HEALED.accuracy_without_negatives.mean():.0f}",
        ],
        "trained briefly ({}, three seeds)": [
            points(where(BERT, variant="tanhmax"), where(BERT, variant="softmax"), "test_accuracy")
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
