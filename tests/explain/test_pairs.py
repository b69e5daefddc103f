"""Pairs of texts, and rows of tensors."""

import re

import pytest
import torch
from tokenizers import normalizers
from transformers import BatchEncoding

from hf_bidir import unsigned
from hf_bidir.explain import Explanation, explain, explain_each
from tests.explain.conftest import NAMES, bert, family, tokenizer

PAIR = ("a unbelievably good film", "bad film")


def words():
    """A tokenizer that tells the second text of a pair by its types."""
    made = tokenizer()
    made.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return made


def model(**options):
    return bert(0.0, **NAMES | options)


def test_both_texts_are_read_together_and_each_has_a_name():
    found = explain(model(), words(), PAIR)
    expected = words()(*PAIR, return_tensors="pt")
    assert set(expected) == set(found.example.inputs)
    assert all(torch.equal(found.example.inputs[name], expected[name]) for name in expected)
    assert expected["token_type_ids"].any()
    assert found.tokens == ["[CLS]", "a", "unbelievably", "good", "film", "[SEP]", "bad", "film", "[SEP]"]
    assert [found.tokens[first] for first in found.example.texts.values()] == ["[CLS]", "bad"]
    assert {"film (1 of 2)", "film (2 of 2)"} <= {name for name, _ in found.listing.strongest(99)}


@pytest.mark.parametrize("options", [{}, {"num_labels": 1, "id2label": {0: "score"}, "label2id": {"score": 0}}])
def test_a_score_is_the_fall_of_y_of_the_stock_model_with_the_word_masked(options):
    stock = unsigned(model(**options))
    found = explain(stock, words(), PAIR, "erasure", verdict=False)
    inputs = dict(words()(*PAIR, return_tensors="pt"))
    pieces = {"unbelievably": [2, 3, 4], "bad": [8], "[SEP]": [7]}
    with torch.no_grad():
        whole = stock(**inputs).logits[0, found.target]
        for word, places in pieces.items():
            keep = inputs["attention_mask"].index_fill(1, torch.tensor(places), 0)
            rest = stock(**inputs | {"attention_mask": keep}).logits[0, found.target]
            torch.testing.assert_close(found.scores[found.tokens.index(word)], whole - rest, rtol=1e-5, atol=1e-6)
    assert found.value == pytest.approx(whole.item(), rel=1e-5)


@pytest.mark.parametrize("method", ["erasure", "attnlrp", "deletion"])
def test_pairs_of_a_list_or_stream_are_explained_as_each_is_alone(method):
    pairs = [PAIR, ("bad", "a good film"), "good"]
    for together in (explain(model(), words(), pairs, method), explain_each(model(), words(), iter(pairs), method)):
        for pair, found in zip(pairs, together, strict=True):
            alone = explain(model(), words(), pair, method, verdict=False)
            torch.testing.assert_close(found.scores, alone.scores, atol=1e-5, rtol=1e-3)
            assert (found.tokens, found.explained) == (alone.tokens, alone.explained)


def test_the_second_text_begins_a_line_after_its_name_on_the_page_and_in_the_picture():
    found = explain(model(), words(), PAIR, verdict=False)
    lines = found.page().split('<div class="text">')[1:]
    assert [re.findall("<small>(text .)<|<b.*?>([^<]+)</b>", line) for line in lines] == [
        [("text 1", ""), *(("", token) for token in found.tokens[:6])],
        [("text 2", ""), *(("", token) for token in found.tokens[6:])],
    ]
    panel = found.plot().axes[0]
    cells = {label.get_text().partition("\n")[0]: label.get_position() for label in panel.texts}
    assert (cells["text 1:"], cells["text 2:"], cells["bad"]) == ((0, 0), (0, 1), (1, 1))


def test_segments_are_those_of_each_text():
    found = explain(model(), words(), ("a good film . a film", "bad ! film"), "erasure", segments="sentences")
    assert [found.tokens[index] for index in found.example.words] == [
        "1. a good film .",
        "2. a film",
        "3. bad !",
        "4. film",
    ]


def test_of_a_pair_that_is_too_long_the_longer_text_is_cut_with_a_note():
    found = explain(model(), words(), ("bad film", "a good film " * 5), "erasure", verdict=False)
    assert found.tokens == ["[CLS]", "bad", "film", "[SEP]", *("a good film " * 3).split()[:7], "[SEP]"]
    assert "the last 8 word pieces were left out, of the longer text and then of both" in found.notes[0]


@pytest.mark.parametrize("wrapped", [dict, BatchEncoding])
def test_a_row_of_tensors_is_explained_piece_by_piece_as_the_model_reads_it(wrapped):
    tensors = wrapped(words()(*PAIR, return_tensors="pt"))
    found, text = (explain(model(), words(), given, "contributions") for given in (tensors, PAIR))
    assert found.tokens[:6] == ["[CLS]", "a", "un", "##believ", "##ably", "good"]
    torch.testing.assert_close(found.example.by_token(found.scores)[2:5].sum(), text.scores[2])
    assert (found.explained, found.example.special.count(True)) == (text.explained, 3)
    (alone,) = explain(model(), words(), [tensors], "contributions")
    torch.testing.assert_close(alone.scores, found.scores)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        (("good", " "), "at least one word, got 'good' and ' '"),
        (("good", 3), r"or a pair of texts as a tuple \(one --text\); got \('good', 3\)"),
        (("good", "bad", "film"), r"got \('good', 'bad', 'film'\)"),
        ({"text": "good"}, r"expected input_ids of one row .* got None"),
        (tokenizer()(["good", "bad"], return_tensors="pt"), r"of one row .* got tensor\("),
        (("good", "\u200b"), r"at least one word, got '\\u200b'"),
    ],
)
def test_bad_input_is_one_error_that_names_it(inputs, named):
    with pytest.raises(ValueError, match=named):
        explain(model(), words(), inputs)


def test_segments_of_tensors_are_refused():
    with pytest.raises(ValueError, match="segments are parts of a text"):
        explain(model(), words(), words()(*PAIR, return_tensors="pt"), segments="sentences")


def test_a_pair_is_refused_by_a_language_model_and_a_stream_by_a_pair():
    causal = family("LlamaForCausalLM", vocab_size=40)
    for choices in ({}, {"new_tokens": 2}):
        with pytest.raises(ValueError, match="BidirLlamaForCausalLM reads one text, not a pair"):
            explain(causal, words(), PAIR, **choices)
    with pytest.raises(ValueError, match="in a list or a stream, got a tuple"):
        next(explain_each(model(), words(), PAIR))


def test_a_pair_that_is_read_again_from_json_has_the_same_page():
    found = explain(model(), words(), PAIR)
    assert Explanation.from_json(found.to_json()).page() == found.page()
