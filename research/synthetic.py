"""The synthetic texts of the TanhMax paper: neutral words, and a few polar ones that determine the class.

Huang, Yang, Wang 2024 describe two sets; the numbers here are theirs, the words are new.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Features, Value

from hf_bidir.common.files import replacing

TEST_SHARE, VALIDATION_SHARE = 0.3, 0.1  # the paper has no validation texts
FEATURES = Features({"text": Value("string"), "label": ClassLabel(names=["negative", "positive"])})


@dataclass(frozen=True)
class SyntheticTexts:
    """The numbers of texts and words of a set.

    Attributes:
        texts: the number of texts in all splits.
        vocabulary: the number of different words.
        polar: the number of polar words among them; the first half negative, the second positive.
        length: words per text.
        polar_words: polar words per text, all with the polarity of the text's class.
    """

    texts: int
    vocabulary: int
    polar: int
    length: int = 12
    polar_words: int = 2

    def words(self) -> list[str]:
        """The vocabulary: neg0, …, pos0, …, word0, …."""
        counts = {"neg": self.polar // 2, "pos": self.polar // 2, "word": self.vocabulary - self.polar}
        return [f"{kind}{number}" for kind, count in counts.items() for number in range(count)]

    def split(self, seed: int = 0) -> dict[str, Dataset]:
        """The texts as "train", "validation" and "test", with the columns `text` and `label`; the same for a seed."""
        generator, half, words = np.random.default_rng(seed), self.polar // 2, np.array(self.words())
        labels = generator.integers(2, size=self.texts)
        polar = labels[:, None] * half + generator.integers(half, size=(self.texts, self.polar_words))
        neutral = generator.integers(self.polar, self.vocabulary, size=(self.texts, self.length - self.polar_words))
        shuffled = generator.permuted(np.concatenate([polar, neutral], axis=1), axis=1)
        rows = Dataset.from_dict({"text": [" ".join(row) for row in words[shuffled]], "label": labels}, FEATURES)
        test, validation = (int(self.texts * share) for share in (TEST_SHARE, VALIDATION_SHARE))
        bounds = {"test": (0, test), "validation": (test, test + validation), "train": (test + validation, self.texts)}
        return {name: rows.select(range(*bound)) for name, bound in bounds.items()}


def write_splits(splits: dict[str, Dataset], folder: Path) -> dict[str, Path]:
    """Save each split as a parquet file; return the paths by name."""
    files = {name: folder / f"{name}.parquet" for name in splits}
    for name, file in files.items():
        with replacing(file) as temporary:
            splits[name].to_parquet(str(temporary))
    return files


SETS = {
    "large": SyntheticTexts(texts=50_000, vocabulary=10_000, polar=1000),
    "small": SyntheticTexts(texts=10_000, vocabulary=2000, polar=200),
}
