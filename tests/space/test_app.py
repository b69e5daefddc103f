"""The Space in a real browser, as a visitor uses it."""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from playwright.sync_api import expect, sync_playwright

from hf_bidir import (
    BidirBertConfig,
    BidirBertForSequenceClassification,
    BidirLlamaConfig,
    BidirLlamaForCausalLM,
)
from hf_bidir.explain.report import FIGURES
from hf_bidir.finetune.data.image_files import read_digits
from hf_bidir.finetune.data.tokenizer import train_byte_level, train_wordpiece
from space.app import ALL, LONGEST, PREDICTED, SENTENCE, explained, offered, twin_of

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
SECONDS = 1000  # in milliseconds, as the browser counts

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; apt-get install chromium")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A small text checkpoint of each activation, twins by name."""
    place = tmp_path_factory.mktemp("texts")
    tokenizer = train_wordpiece(
        ["a good film", "a bad film", "< b > bold img src x onerror"], vocab_size=80, max_length=64
    )
    for activation in ("tanhmax", "softmax"):
        torch.manual_seed(0)
        config = BidirBertConfig(
            vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=64, attn_activation=activation,
        )  # fmt: skip
        BidirBertForSequenceClassification(config).save_pretrained(place / f"words-{activation}")
        tokenizer.save_pretrained(place / f"words-{activation}")
    return [str(place / f"words-{activation}") for activation in ("tanhmax", "softmax")]


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    """A small causal language model of each activation, twins by name."""
    place = tmp_path_factory.mktemp("decoders")
    tokenizer = train_byte_level(["the film was not good"] * 9, vocab_size=280, max_length=64)
    for activation in ("tanhmax", "softmax"):
        torch.manual_seed(0)
        config = BidirLlamaConfig(
            vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=64, attn_activation=activation, initializer_range=0.4,
        )  # fmt: skip
        BidirLlamaForCausalLM(config).save_pretrained(place / f"writer-{activation}")
        tokenizer.save_pretrained(place / f"writer-{activation}")
    return [str(place / f"writer-{activation}") for activation in ("tanhmax", "softmax")]


def test_a_decoder_is_shown_beside_its_twin_with_its_next_token_or_any_other(decoders):
    *_, target, _, _ = offered(decoders[0])
    assert target.allow_custom_value
    chosen = [decoders, decoders[0], "contributions"]
    answers = explained(*chosen, PREDICTED, ALL, ALL, "the film was", None)
    others = explained(*chosen, "good", ALL, ALL, "the film was", None)
    for one in (0, 1 + len(FIGURES)):
        assert "above the mean of all tokens" in answers[one].value
        assert 'y, the logit of " good" above' in others[one].value
        assert isinstance(answers[one + 1], Figure)


@pytest.fixture(scope="module")
def address(texts):
    """Where the Space answers, with the committed digits checkpoints and the small text ones."""
    digits = [str(ROOT / "model_cards" / f"digits-{activation}") for activation in ("tanhmax", "softmax")]
    command = [sys.executable, "-u", str(ROOT / "space/app.py"), *digits, *texts]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    ) as server:
        for line in server.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0]
                break
        server.terminate()


@pytest.fixture(scope="module")
def browser():
    expect.set_options(timeout=60 * SECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def visitor(browser, address):
    """A page that has loaded."""
    page = browser.new_page(viewport={"width": 1400, "height": 1200})
    page.set_default_timeout(60 * SECONDS)
    page.goto(address)
    page.get_by_role("heading", name="Signed attention").wait_for()
    page.get_by_label("Text", exact=True).wait_for(state="hidden")  # the first takes images
    yield page
    page.close()


def choose(page, label, name):
    box = page.get_by_role("combobox", name=label, exact=True)
    box.click()
    page.locator(f"[role=option][id^='{box.get_attribute('aria-controls')}-'][aria-label='{name}']").click()


def choose_text_checkpoint(page):
    """The text checkpoint, and the page has changed with it."""
    choose(page, "Checkpoint", "words-tanhmax")
    page.get_by_label("Text", exact=True).wait_for()


def answer_of(page, checkpoint):
    """The box with the words about a checkpoint; it is there once there are any."""
    return page.get_by_role("textbox", name=checkpoint, exact=True)


def words(page, checkpoint):
    return answer_of(page, checkpoint).input_value()


def explain_the_example(page):
    page.get_by_role("button", name="An example").click()
    expect(page.get_by_role("textbox", name="Text", exact=True)).to_have_value(SENTENCE)
    page.get_by_role("button", name="Explain").click()
    expect(answer_of(page, "words-tanhmax")).to_have_value(re.compile("Explained"))


def colors_of(page, index):
    """How many colours a picture of the page has; a blank one has one."""
    picture = page.locator(".plot-container img, [data-testid=matplotlib] img").nth(index)
    picture.wait_for()
    shot = Image.open(io.BytesIO(picture.screenshot())).convert("RGB")
    return len(np.unique(np.asarray(shot).reshape(-1, 3), axis=0))


@needs_browser
def test_an_image_is_explained_with_pictures_beside_the_softmax_twin(visitor, tmp_path):
    read_digits()["test"][0]["image"].save(tmp_path / "digit.png")
    visitor.locator("input[type=file]").set_input_files(tmp_path / "digit.png")
    visitor.locator("[data-testid=image] img").wait_for()
    visitor.get_by_role("button", name="Explain").click()
    assert "Explained: y, the logit of" in words(visitor, "digits-tanhmax")
    assert "contribution" in words(visitor, "digits-softmax")
    assert all(colors_of(visitor, index) > 20 for index in range(6))


@needs_browser
def test_a_sentence_is_explained_by_the_method_layer_and_head_that_were_chosen(visitor):
    choose_text_checkpoint(visitor)
    visitor.get_by_label("Text", exact=True).fill("a good film")
    choose(visitor, "Method", "signed-attention")
    choose(visitor, "Layer", "0")
    choose(visitor, "Head", "1")
    visitor.get_by_role("button", name="Explain").click()
    assert "coefficients a of the token that is read; layer 0, head 1" in words(visitor, "words-tanhmax")
    assert "layer 0, head 1" in words(visitor, "words-softmax")


@needs_browser
def test_html_in_a_text_is_shown_and_not_obeyed(visitor):
    choose_text_checkpoint(visitor)
    text = '<img src=x onerror="window.obeyed=1"> <b id=bold>bold</b>'
    visitor.get_by_label("Text", exact=True).fill(text)
    visitor.get_by_role("button", name="Explain").click()
    assert "img" in words(visitor, "words-tanhmax")
    assert visitor.evaluate("window.obeyed") is None
    assert visitor.locator("#bold").count() == 0


@needs_browser
def test_what_cannot_be_explained_is_one_line_and_the_page_goes_on(visitor):
    choose_text_checkpoint(visitor)
    visitor.get_by_label("Text", exact=True).fill("   ")
    visitor.get_by_role("button", name="Explain").click()
    assert "Give a text or an image first" in words(visitor, "words-tanhmax")
    explain_the_example(visitor)


@needs_browser
def test_another_checkpoint_wipes_out_the_answer_of_the_last_one(visitor):
    choose_text_checkpoint(visitor)
    explain_the_example(visitor)
    choose(visitor, "Checkpoint", "words-softmax")
    expect(answer_of(visitor, "words-tanhmax")).to_have_value("")


def test_twins_are_found_by_name_and_those_of_the_same_owner_first():
    known = ["a/x-tanhmax", "b/x-softmax", "c/alone-tanhmax", "d/other", "tanhmax-lab/y-softmax", "a/x-softmax"]
    twins = ["a/x-softmax", "a/x-tanhmax", None, None, None, "a/x-tanhmax"]
    assert [twin_of(name, known) for name in known] == twins


def test_a_page_that_was_never_given_a_text_asks_for_one(texts):
    said, *figures = explained(texts, texts[0], "contributions", PREDICTED, ALL, ALL, None, None)[:4]
    assert "Give a text or an image first" in said.value
    assert figures == [None] * 3


def test_a_file_that_is_no_image_is_named_without_its_folder(tmp_path):
    (tmp_path / "image.png").write_text("no image")
    digits = str(ROOT / "model_cards/digits-tanhmax")
    said = explained([digits], digits, "contributions", PREDICTED, ALL, ALL, None, str(tmp_path / "image.png"))[0]
    assert "image.png cannot be read" in said.value
    assert str(tmp_path) not in said.value


def test_a_text_is_never_read_as_the_name_of_a_file(texts):
    said = explained(texts, texts[0], "contributions", PREDICTED, ALL, ALL, str(ROOT / "README.md"), None)[0]
    assert "is a file" not in said.value
    assert "Explained" in said.value


def test_a_text_beyond_every_limit_is_cut_before_it_is_read(texts):
    said = explained(texts, texts[0], "contributions", PREDICTED, ALL, ALL, "good " * 5000, None)[0]
    left_out = int(re.search(r"its last (\d+) word pieces were left out", said.value)[1])
    assert left_out < LONGEST / len("good ")


def test_what_can_be_chosen_is_what_the_checkpoint_has(texts):
    text, image, method, target, layer, head = offered(texts[0])
    assert (text.visible, image.visible) == (True, False)
    assert [value for value, _ in target.choices] == [PREDICTED, "LABEL_0", "LABEL_1"]
    assert [value for value, _ in layer.choices] == [value for value, _ in head.choices] == [ALL, "0", "1"]
    assert ("contributions", "contributions") in method.choices
