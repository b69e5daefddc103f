"""The Space, in a real browser as a visitor uses it, and by its functions."""

import re
import sys
from pathlib import Path

import app
import gradio as gr
import pytest
from models import DEFAULT, LONGEST, PREDICTED, SENTENCES, counterpart_of, examples_of, loaded, offered_models
from page import ALL_HEADS, explained, opened
from PIL import Image
from playwright.sync_api import expect, sync_playwright
from screenshots import CHROMIUM, FLAGS

from hf_bidir import BidirLlamaForCausalLM
from hf_bidir.explain import explain
from hf_bidir.finetune.data.tokenizer import train_byte_level
from tests.space.conftest import DIGITS, FILMS, ROOT, save_pair
from tests.tiny_models import stock_model


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here; apt-get install chromium")
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser, address):
    """The open page, complete with the first explanation."""
    page = browser.new_page(viewport={"width": 1400, "height": 1200})
    page.set_default_timeout(60_000)
    page.goto(address)
    expect(page.locator(".card .hf-bidir")).to_have_count(2)
    yield page
    page.close()


def choose(page, label, name):
    box = page.get_by_role("combobox", name=label, exact=True)
    box.click()
    page.locator(f"[role=option][id^='{box.get_attribute('aria-controls')}-'][aria-label='{name}']").click()


def choose_text_model(page):
    """The text model, once its example is in the box and explained by both."""
    choose(page, "Model", "words")
    expect(page.get_by_label("Text", exact=True)).to_have_value(SENTENCES[0])
    for side in (0, 1):
        expect(words(page, side)).to_have_text(SENTENCES[0].split())


def card(page, side):
    return page.locator(".block.card").nth(side)


def words(page, side):
    """The words of the scores, above what is folded."""
    return card(page, side).locator(".hf-bidir > .text .word:not(.template) b")


def submit(page, text):
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Explain", exact=True).click()


def test_the_page_opens_with_an_explained_image_and_explains_an_upload_at_once(page):
    for side, title in enumerate(("Signed attention (TanhMax)", "Softmax attention")):
        expect(card(page, side).get_by_role("heading", name=title)).to_be_visible()
        expect(card(page, side)).to_contain_text("Both models predict “0”.")
        expect(card(page, side).locator("figure img").first).to_be_visible()
        expect(card(page, side).locator("details img").first).to_be_hidden()
    page.locator("input[type=file]").set_input_files(ROOT / "space/examples/digits/4.png")
    expect(card(page, 0)).not_to_contain_text("Both models predict “0”.")


def test_the_headline_of_a_verdict_is_white_on_its_colour(page):
    for side in (0, 1):
        expect(card(page, side).locator(".verdict b")).to_have_css("color", "rgb(255, 255, 255)")


def test_the_chosen_head_is_shown_alone(page):
    choose_text_model(page)
    page.get_by_role("button", name="Method, target and head").click()
    choose(page, "Head", "layer 1, head 3")
    for side in (0, 1):
        meaning = card(page, side).locator(".hf-bidir > .caption")
        expect(meaning).to_have_text(re.compile(r"^y is the logit of LABEL_\d\. Contribution .*; layer 1, head 3: "))


def test_bad_input_gives_one_line_html_is_shown_and_not_obeyed_and_the_page_goes_on(page):
    choose_text_model(page)
    submit(page, "   ")
    expect(page.locator(".message p")).to_have_text("There is nothing to explain yet: type a text.")
    expect(card(page, 0)).to_be_hidden()
    page.get_by_role("button", name=SENTENCES[2]).click()
    expect(words(page, 1)).to_have_text(SENTENCES[2].split())
    expect(page.locator(".message p")).to_be_hidden()
    submit(page, '<img src=x onerror="window.obeyed=1"> <b id=bold>bold</b>')
    expect(words(page, 0).filter(has_text="img")).to_have_count(1)
    assert page.evaluate("window.obeyed") is None
    assert page.locator("#bold").count() == 0


def test_a_phone_shows_everything_without_scrolling_sideways(page):
    page.set_viewport_size({"width": 390, "height": 844})
    choose_text_model(page)
    submit(page, "good " * 60 + "un" * 60)
    expect(card(page, 0)).to_contain_text("were left out")
    assert card(page, 0).bounding_box()["y"] < card(page, 1).bounding_box()["y"]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def sides(checkpoints, text, method=DEFAULT, target=PREDICTED, head=ALL_HEADS):
    """What both models show."""
    response = explained(checkpoints, checkpoints[0], method, target, head, text)
    return [response[f"side {side}"].get("value") for side in (0, 1)]


def test_counterparts_are_found_by_name_and_those_of_the_same_owner_first():
    known = ["a/x-tanhmax", "b/x-softmax", "c/alone-tanhmax", "d/other", "tanhmax-lab/y-softmax", "a/x-softmax"]
    others = ["a/x-softmax", "a/x-tanhmax", None, None, None, "a/x-tanhmax"]
    assert [counterpart_of(name, known) for name in known] == others
    known = ["a/x-tanhmax", "a/x-softmax", "b/alone-softmax", "c/other"]
    assert offered_models(known) == [("x", known[0]), ("alone-softmax", known[2]), ("other", known[3])]
    assert {*DIGITS, *FILMS} <= {*app.found_here()}


def test_a_decoder_is_explained_for_its_next_token_or_any_other_and_an_encoder_decoder_word_by_word(tmp_path):
    tokenizer = train_byte_level(["the film was not good"] * 9, vocab_size=280, max_length=64)
    decoders = save_pair(tmp_path, tokenizer, BidirLlamaForCausalLM)
    offered = opened(decoders, decoders[0])
    assert offered["target"]["allow_custom_value"]
    assert offered["text"]["value"] == examples_of(decoders[0])[0]
    for shown in sides(decoders, "the film was", target="good"):
        assert "the logit of &#34;good&#34;" in shown
        assert re.findall(r"<b [^>]*>(.*?)</b>", shown.partition("<details>")[0]) == ["the", "film", "was"]
    for part in (stock_model("bart", vocab_size=len(tokenizer)), tokenizer):
        part.save_pretrained(tmp_path)
    assert sides([str(tmp_path)], "the film was")[0].count("<small>→ ") > 1


def test_both_models_are_explained_for_the_class_that_the_first_predicts(texts):
    offered = opened(texts, texts[0])
    assert (offered["text"]["visible"], offered["image"]["visible"]) == (True, False)
    assert offered["target"]["choices"] == [PREDICTED, "LABEL_0", "LABEL_1"]
    assert sides(texts[:1], SENTENCES[0])[1] is None
    verdicts = ("Both models predict “positive”.", "The models differ; both are explained for “positive”.")
    for sentence, verdict in zip(SENTENCES, verdicts, strict=False):
        for shown in sides(FILMS, sentence):
            assert verdict in shown
            assert "the logit of positive" in shown
    for shown in sides(FILMS, SENTENCES[1], target="negative"):
        assert "the logit of negative" in shown
        assert "Both models" not in shown


def test_both_models_share_a_colour_scale_and_the_numbers_are_those_of_the_library(texts):
    shown = sides(texts, SENTENCES[0], method="attention", head="1 0")
    scores = [part.partition("<details>")[0] for part in shown]
    bars = [re.search(r'class="scale">(.*)</div>', part)[1] for part in scores]
    assert bars[0] == bars[1]
    for checkpoint, part in zip(texts, scores, strict=True):
        expected = explain(*loaded(checkpoint), f" {SENTENCES[0]}", "attention", layer=1, head=0)
        numbers = [float(number) for number in re.findall(r"</b><small>(.*?)</small>", part)]
        scores = expected.scores[expected.example.words]
        assert numbers == pytest.approx(scores[scores > 0.01 * scores.max()].tolist(), rel=0.06)


def test_a_missing_checkpoint_is_named_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["app.py", "model_cards/no-such-checkpoint"])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit, match="2"):
        app.main()
    assert "model_cards/no-such-checkpoint" in capsys.readouterr().err.splitlines()[-1]


def test_an_upload_arrives_as_it_was(blocks, tmp_path):
    Image.new("I;16", (9, 9)).save(tmp_path / "image.png")
    upload = next(block for block in blocks.blocks.values() if isinstance(block, gr.Image))
    received = upload.preprocess(gr.data_classes.ImageData(path=str(tmp_path / "image.png"), orig_name="image.png"))
    assert Path(received).read_bytes() == (tmp_path / "image.png").read_bytes()


def test_a_file_that_is_no_image_is_named_without_its_folder(tmp_path):
    (tmp_path / "image.png").write_text("no image")
    response = explained(DIGITS, DIGITS[0], DEFAULT, PREDICTED, ALL_HEADS, str(tmp_path / "image.png"))
    message = response["message"]["value"]
    assert "image.png cannot be read" in message
    assert str(tmp_path) not in message


def test_a_text_is_never_a_file_and_is_cut_before_it_is_tokenized(texts):
    assert sides(texts, str(ROOT / "README.md"))[0]
    left_out = int(re.search(r"the last (\d+) word pieces were left out", sides(texts, "good " * 5000)[0])[1])
    assert left_out < LONGEST  # not of all 5000 words
