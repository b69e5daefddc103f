"""Texts that repeat a text of an earlier split."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_bidir.finetune.data.overlap import SAME_BEGINNING, SHARED_WORDS, find_repeats

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=24).map(" ".join)
TEXTS = st.lists(WORDS, min_size=1, max_size=5)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=150)


def numbers(first: int, count: int) -> str:
    return " ".join(map(str, range(first, first + count)))


def repeats(text: str, other: str, share: float = 0.5) -> str | None:
    """The definition, word for word."""
    beginnings = {" ".join(one.lower().split())[:100] for one in (text, other)}
    if len(beginnings) == 1:
        return SAME_BEGINNING
    words = [re.findall(r"\w+", one.lower()) for one in (text, other)]
    mine, theirs = ({tuple(one[i : i + 8]) for i in range(len(one) - 7)} for one in words)
    fewer = min(len(mine), len(theirs))
    return SHARED_WORDS if fewer and len(mine & theirs) >= share * fewer else None


@given(train=TEXTS, validation=TEXTS, test=TEXTS, share=st.sampled_from([0.25, 0.5, 1.0]))
def test_repeats_are_those_of_the_definition_applied_to_every_pair(train, validation, test, share):
    splits, earlier = {"train": train, "validation": validation, "test": test}, []
    found = find_repeats(splits, share)
    for name, texts in splits.items():
        reasons = [{repeats(text, other, share) for other in earlier} - {None} for text in texts]
        assert found[name].kept == [row for row, one in enumerate(reasons) if not one]
        assert found[name].removed == {
            SAME_BEGINNING: sum(SAME_BEGINNING in one for one in reasons),
            SHARED_WORDS: sum(one == {SHARED_WORDS} for one in reasons),
        }
        before = [{repeats(text, other, share) for other in texts[:row]} - {None} for row, text in enumerate(texts)]
        assert found[name].duplicates == sum(map(bool, before))
        earlier += texts


@given(beginning=st.text("abc ", min_size=100).filter(lambda text: len(" ".join(text.split())) >= 100), rest=ANY_TEXT)
def test_a_text_with_the_first_100_characters_of_a_training_text_is_always_found(beginning, rest):
    splits = {"train": ["other", beginning], "test": [f"  {beginning.upper()} {rest}", "new"]}
    assert find_repeats(splits)["test"].kept == [1]


def test_a_quoted_text_is_found_and_half_of_its_8_grams_are_enough():
    train = [numbers(0, 40)]
    test = ["> " + numbers(10, 20), f"{numbers(0, 12)} {numbers(100, 5)}", f"{numbers(0, 11)} {numbers(100, 6)}"]
    assert find_repeats({"train": train, "test": test})["test"].kept == [2]  # 13, 5 of 10 and 4 of 10 8-grams


def test_a_template_of_more_than_100_texts_makes_no_text_a_repetition():
    template = "this is the question that you are to answer in one word"
    texts = [f"{number} {template} {number}" for number in range(120)]
    assert find_repeats({"train": texts[:100], "test": texts[100:]})["test"].kept == list(range(20))
    assert find_repeats({"train": texts[:60], "test": texts[60:80]})["test"].kept == []


@pytest.mark.parametrize("texts", [[], [""], ["short"]])
def test_splits_with_fewer_than_8_words_in_all_have_no_8_grams(texts):
    assert find_repeats({"train": texts, "test": ["new"]})["test"].kept == [0]
