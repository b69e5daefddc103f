"""The synthetic texts: their sizes, and that two polar words decide."""

import pytest

from hf_bidir.finetune.data.synthetic import SETS, SyntheticTexts

TINY = SyntheticTexts(texts=200, vocabulary=50, polar=10)


@pytest.mark.parametrize(
    ("name", "texts", "vocabulary", "polar"), [("large", 50_000, 10_000, 1000), ("small", 10_000, 2000, 200)]
)
def test_the_sets_have_the_sizes_of_the_paper(name, texts, vocabulary, polar):
    assert (SETS[name].texts, len(SETS[name].words())) == (texts, vocabulary)
    assert sum(word.startswith(("pos", "neg")) for word in SETS[name].words()) == polar
    assert len(set(SETS[name].words())) == vocabulary


def test_every_text_has_two_polar_words_of_its_class_anywhere_among_ten_neutral_ones():
    assert {name: len(split) for name, split in TINY.split().items()} == {"train": 120, "validation": 20, "test": 60}
    places = set()
    for split in TINY.split().values():
        names = split.features["label"].names
        for row in split:
            words = row["text"].split()
            polar = [word for word in words if not word.startswith("word")]
            places.update(map(words.index, polar))
            assert (len(words), len(polar)) == (12, 2)
            assert all(word.startswith(names[row["label"]][:3]) for word in polar)
    assert places == set(range(12))


def test_a_seed_determines_the_texts():
    first, again, other = (TINY.split(seed)["train"]["text"][:] for seed in (0, 0, 1))
    assert first == again
    assert first != other
