"""The polarity of words: by construction in the synthetic sets, by human grades in SST."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.data.synthetic import SETS
from research.paper.experiments import Experiment

NEUTRAL_GRADE = 2  # on the scale 0 to 4
POLAR_FROM = 0.5  # minimum mean distance from the neutral grade


def polarity_of_words(experiment: Experiment, graded: Path | None) -> dict[str, int]:
    """1 or -1 for every polar word; words that are missing are neutral. Empty if polarities are unknown.

    Args:
        experiment: the experiment.
        graded: a file with the columns `tokens` and `token_labels`, 0 to 4, or None.
    """
    if experiment.synthetic:
        words = SETS[experiment.synthetic].words()
        return {word: 1 if word.startswith("pos") else -1 for word in words if not word.startswith("word")}
    if graded is None:
        return {}
    grades = defaultdict(list)
    for row in read_table(str(graded)):
        for word, label in zip(row["tokens"], row["token_labels"], strict=True):
            grades[word.lower()].append(label - NEUTRAL_GRADE)
    means = {word: np.mean(values) for word, values in grades.items()}
    return {word: int(np.sign(mean)) for word, mean in means.items() if abs(mean) >= POLAR_FROM}
