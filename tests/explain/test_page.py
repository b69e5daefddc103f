"""The page of an explanation, which runs nothing."""

import re
from dataclasses import replace
from datetime import date

import pytest
import torch
from markupsafe import escape
from peft import LoraConfig, get_peft_model
from PIL import Image
from rich.console import Console
from transformers import ViTImageProcessor

from hf_bidir import BidirBertForSequenceClassification, __version__
from hf_bidir.explain import explain, load_checkpoint
from hf_bidir.explain.draw.page import sections_of, write_explanation
from hf_bidir.explain.draw.terminal import print_words
from hf_bidir.explain.readout import Prediction
from hf_bidir.explain.result import Explanations
from hf_bidir.explain.verdict import Verdict
from tests.explain.conftest import bert, picture, saved, tokenizer, vit

HOSTILE = "<script>alert(1)</script>"


def explanation_of(scores, **fields):
    """An explanation of a few tokens with these scores."""
    found = explain(bert(), tokenizer(), "a good film", "erasure")
    example = replace(found.example, tokens=list(scores), special=[False] * len(scores))
    return replace(found, example=example, scores=torch.tensor(list(scores.values())), coefficients=None, **fields)


def test_positive_is_red_negative_blue_and_zero_white_on_one_scale():
    page = explanation_of({"for": 0.5, "against": -0.5, "neither": 0.0}).page()
    colors = re.findall(r"<b style=\"background: #(\w{6})", page)
    red, blue, white = (tuple(bytes.fromhex(color)) for color in colors)
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert min(white) > 240
    assert sum(red) == pytest.approx(sum(blue), abs=80)  # equally strong, equally dark


def test_words_carry_their_numbers_signed_only_if_some_are_negative(tmp_path):
    def numbers(scores):
        return re.findall(r">([^<>]+)</b><small>([^<>]+)<", explanation_of(scores).page())

    signed = numbers({"for": 0.5, "against": -0.006, "weak": 4e-3})
    assert signed == [("for", "+0.5"), ("against", "−0.006")]
    assert numbers({"a": 0.1, "b": 0.25}) == [("a", "0.1"), ("b", "0.25")]


@pytest.mark.parametrize(
    ("method", "layer", "after", "pale"),
    [
        ("erasure", None, 0.5, True),
        ("contributions", None, 0.99, True),
        ("contributions", None, 0.5, False),
        ("contributions", 0, 0.99, False),
    ],
)
def test_small_changes_and_scores_where_y_hardly_moves_have_hardly_any_colour(method, layer, after, pale):
    verdict = Verdict(Prediction("", 1.0, "good", 0.7), ["for"], Prediction("", after, "good", 0.7))
    page = explanation_of({"for": 1e-4, "against": -1e-4}, verdict=verdict, layer=layer, method=method).page()
    colors = re.findall(r"<b style=\"background: #(\w{6})", page)
    assert [min(bytes.fromhex(color)) > 240 for color in colors] == [pale, pale]


def test_on_a_terminal_words_close_to_zero_have_no_background(monkeypatch, capsys):
    console = Console(force_terminal=True, color_system="truecolor", no_color=False)
    monkeypatch.setattr("hf_bidir.explain.draw.terminal.Console", lambda: console)
    print_words(explanation_of({"for": 0.5, "weak": 0.01}))
    assert re.findall(r"48;2;[\d;]+m(\w+)", capsys.readouterr().out) == ["for"]


def test_nothing_of_a_text_is_run_and_nothing_comes_from_elsewhere():
    hostile = [HOSTILE, '"><img src=x onerror=alert(1)>']
    found = explanation_of(dict.fromkeys(hostile, 1.0), explained=HOSTILE, notes=[HOSTILE])
    for shown in (found.page(), found._repr_html_()):
        for token in hostile:
            assert escape(token) in shown
            assert token not in shown
        assert not re.search(r"(src|href)\s*=\s*[\"']?http|url\(", shown)
    assert "default-src 'none'" in found.page()


@pytest.mark.parametrize("kind", ["text", "image"])
def test_the_scores_come_first_and_what_was_asked_for_is_folded_with_a_scale_of_its_own(kind):
    source = (bert(), tokenizer(), "a good film")
    if kind == "image":
        source = (vit(), ViTImageProcessor(size={"height": 8, "width": 8}), picture())
    found = explain(*source, "contributions", details=True)
    sections = list(sections_of(found))
    shown = [found.scores, found.coefficients.values]
    limits = [scores[found.example.words].abs().max().item() for scores in shown]
    limits.append(found.heads.abs().max().item())
    assert [section.scale.limit for section in sections] == pytest.approx(limits)
    images = kind == "image"
    assert [section.figure is not None for section in sections] == [images, images, True]
    first, folded = found._repr_html_().split("<details>")
    assert [part.count("<h2>") for part in (first, *folded.split("</details>"))] == [0, 2, 0]
    sentences = [found.reading, f"<b>{found.verdict.title}</b> With", *found.notes]
    order = [escape(found.explained), "<img" if images else 'class="word"', *sentences]
    places = [first.find(part) for part in order]
    assert min(places) > -1
    assert places == sorted(places)
    assert Explanations([found, found])._repr_html_().count(str(escape(found.reading))) == 1


def test_a_page_ends_with_the_model_the_method_and_the_day(checkpoint):
    found = explain(*load_checkpoint(checkpoint), "a good film")
    found = replace(found, day=date(2026, 1, 2))
    model = "/".join(checkpoint.parts[-2:])  # not the folders of the machine
    assert f">Model: {model}. Method: erasure. hf_bidir {__version__}, 2026-01-02.</p>" in found.page()


def test_an_adapter_is_named_by_its_own_folder(checkpoint, tmp_path):
    base = BidirBertForSequenceClassification.from_pretrained(checkpoint)
    model = get_peft_model(base, LoraConfig(target_modules="all-linear", task_type="SEQ_CLS"))
    folder = saved(model, tokenizer(), tmp_path / "adapter")
    assert explain(*load_checkpoint(folder), "a good film").model == str(folder)


def test_the_page_of_an_image_has_the_name_of_its_file_if_there_is_one(tmp_path):
    file = tmp_path / "noise.png"
    picture().save(file)
    source = vit(), ViTImageProcessor(size={"height": 8, "width": 8})
    for image in (file, str(file), Image.open(file)):
        page = explain(*source, image).page()
        assert ">Image: noise.png. Method: attnlrp. " in page
    assert ">Method: attnlrp. " in explain(*source, picture()).page()


def test_an_earlier_explanation_is_replaced_and_other_pages_are_refused(tmp_path):
    found = explanation_of({"a": 1.0})
    assert write_explanation(found, tmp_path / "out") == tmp_path / "out" / "index.html"
    write_explanation(replace(found, explained="another"), tmp_path / "out")
    assert "another" in (tmp_path / "out/index.html").read_text(encoding="utf-8")
    (tmp_path / "index.html").write_text("a page of someone else")
    for folder in (tmp_path, tmp_path / "index.html"):
        with pytest.raises(FileExistsError, match=f"got {folder}. "):
            write_explanation(found, folder)
    assert (tmp_path / "index.html").read_text() == "a page of someone else"
