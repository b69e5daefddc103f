"""Explanations as JSON, and back."""

import json
from functools import partial

import pytest
from transformers import ViTImageProcessor

from hf_bidir.explain import Alignment, Explanation, explain
from tests.explain.conftest import NAMES, bert, family, picture, tokenizer, vit

TEXT = "a  unbelievably good film"
GPT = {"vocab_size": 14, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 2, "eos_token_id": 3}
explained = partial(explain, bert(**NAMES), tokenizer(), TEXT)


@pytest.mark.parametrize(
    "options",
    [{}, {"details": True}, {"segments": ["a", "good film"]}, {"method": "rollout", "verdict": False, "layer": 1}],
)
def test_an_explanation_that_is_read_again_prints_and_pages_the_same(options, tmp_path):
    found = explained(**options)
    found.to_json(tmp_path / "found.json")
    for source in (found.to_json(), tmp_path / "found.json", str(tmp_path / "found.json")):
        again = Explanation.from_json(source)
        assert str(again) == str(found)
        assert again.page() == found.page()
        assert again.to_json() == found.to_json()


def test_words_have_their_characters_in_the_text():
    content = json.loads(explained().to_json())["example"]
    first, *words, last = zip(content["tokens"], content["places"], content["special"], strict=True)
    assert (first[1:], last[1:]) == ((None, True), (None, True))
    assert content["text"] == TEXT
    assert [TEXT[slice(*place)] for _, place, _ in words] == [word for word, _, _ in words] == TEXT.split()


def test_patches_have_their_pixels_and_are_drawn_without_the_image():
    processor = ViTImageProcessor(size={"height": 8, "width": 8})
    found = explain(vit(), processor, picture())
    content = found.to_dict()["example"]
    assert (content["places"][0], content["places"][1], content["places"][-1]) == (None, [0, 0, 2, 2], [6, 6, 8, 8])
    again = Explanation.from_json(found.to_json())
    assert str(again) == str(found)
    first, *_ = again.plot().axes
    assert first.get_title() == "The image is not stored."


@pytest.mark.parametrize("options", [{"continuation": "film !"}, {"new_tokens": 2}])
def test_generated_text_is_read_again(options):
    found = explain(family("GPT2LMHeadModel", **GPT), tokenizer(), "a good", **options)
    content = found.to_dict()["example"]
    assert [content["text"][slice(*place)] for place in content["places"] if place] == ["a", "good"]
    again = Alignment.from_json(found.to_json())
    assert (str(again), again.page(), again.to_json()) == (str(found), found.page(), found.to_json())


@pytest.mark.parametrize(
    "source",
    [
        "",
        "no JSON",
        "[]",
        "1",
        "{}",
        '{"schema": 2, "kind": "Explanation"}',
        '{"schema": 1, "kind": "Alignment"}',
        "absent.json",
        "x" * 5000,
    ],
)
def test_everything_else_is_one_error(source):
    with pytest.raises(ValueError, match=r"^expected an explanation with schema 1, as to_json writes it, .* got "):
        Explanation.from_json(source)
