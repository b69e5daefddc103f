"""The Space, in a real browser as a visitor uses it, and by its functions."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gradio as gr
import pytest
import torch
from app import OPENS_WITH, found_here
from models import (
    DEFAULT,
    LONGEST,
    PREDICTED,
    SENTENCES,
    counterpart_of,
    examples_of,
    loaded,
    offered_models,
)
from page import explained, opened
from page import page as build_page
from pictures import pictures
from PIL import Image
from playwright.sync_api import expect, sync_playwright
from screenshots import CHROMIUM, FLAGS
from transformers import BartConfig, BartForConditionalGeneration

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification, BidirLlamaConfig, BidirLlamaForCausalLM
from hf_bidir import explain as explanations
from hf_bidir.finetune.data.tokenizer import train_byte_level, train_wordpiece
from tests import forks

ROOT = Path(__file__).parents[2]
DIGITS = [str(ROOT / "model_cards" / f"digits-{activation}") for activation in ("tanhmax", "softmax")]
FILMS = [str(ROOT / "model_cards" / f"sst2-rnn-{activation}") for activation in ("tanhmax", "softmax")]
SECONDS = 1000  # in milliseconds, as the browser counts
PHONE = {"width": 390, "height": 844}
SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 16, "intermediate_size": 16,
    "max_position_embeddings": 64, "initializer_range": 0.4,
}  # fmt: skip

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; apt-get install chromium")


def save_pair(folder, name, tokenizer, make):
    """A small checkpoint of each activation, counterparts by name."""
    for activation in ("tanhmax", "softmax"):
        torch.manual_seed(0)
        make(vocab_size=len(tokenizer), attn_activation=activation, **SHAPE).save_pretrained(
            folder / f"{name}-{activation}"
        )
        tokenizer.save_pretrained(folder / f"{name}-{activation}")
    return [str(folder / f"{name}-{activation}") for activation in ("tanhmax", "softmax")]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    tokenizer = train_wordpiece([*SENTENCES, "< b > bold img src x onerror"], vocab_size=120, max_length=64)
    return save_pair(
        tmp_path_factory.mktemp("texts"), "words", tokenizer,
        lambda **fields: BidirBertForSequenceClassification(BidirBertConfig(**fields)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    tokenizer = train_byte_level(["the film was not good"] * 9, vocab_size=280, max_length=64)
    return save_pair(
        tmp_path_factory.mktemp("decoders"), "generates", tokenizer,
        lambda **fields: BidirLlamaForCausalLM(BidirLlamaConfig(**fields)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def address(texts):
    """The URL of a server with the committed digits checkpoints and small text ones."""
    command = [forks.prepare(), "-u", str(ROOT / "space/app.py"), *DIGITS, *texts]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        found = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+", line) for line in server.stdout)), None)
        assert found, "the server ended before it had an address"
        yield found[0]
        server.terminate()


@pytest.fixture(scope="module")
def browser():
    expect.set_options(timeout=60 * SECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, address):
    """Open the page, complete with the first explanation."""
    pages = []

    def open_page(width=1400, height=1200):
        page = browser.new_page(viewport={"width": width, "height": height})
        pages.append(page)
        page.set_default_timeout(60 * SECONDS)
        page.goto(address)
        expect(page.locator(".patches")).to_have_count(2)
        return page

    yield open_page
    for page in pages:
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
    return page.locator(".column.card").nth(side)


def words(page, side):
    return card(page, side).locator(".word b")


def explain(page, text):
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Explain", exact=True).click()


def head(page, side, layer, number):
    return card(page, side).get_by_role("button", name=f"layer {layer}, head {number}", exact=True)


def too_wide(page):
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


@needs_browser
def test_the_page_opens_with_an_explained_example_on_one_colour_scale(visit):
    page = visit()
    for side, title in enumerate(("Signed attention (TanhMax)", "Softmax attention")):
        expect(card(page, side).get_by_role("heading", name=title)).to_be_visible()
        expect(card(page, side).locator(".block.title")).to_contain_text(re.compile(r"\(\d+\.\d%\)"))
        expect(card(page, side).locator(".patch")).to_have_count(16)
        expect(card(page, side).locator(".block.title")).to_contain_text("Both models predict “0”.")
        expect(card(page, side).locator(".picture p")).to_have_text(
            re.compile(
                "Integrated gradients from the mean colour: red patches support its own prediction"
            )  # as in the CLI
        )
    legends = [card(page, side).locator(".picture .legend").inner_text() for side in (0, 1)]
    assert legends[0] == legends[1]
    assert page.locator(".patch i").evaluate_all("all => new Set(all.map(one => one.style.background)).size") > 8
    before = card(page, 0).locator(".block.title").inner_text()
    page.locator("input[type=file]").set_input_files(ROOT / "space/examples/digits/4.png")  # explained at once
    expect(card(page, 0).locator(".block.title")).not_to_have_text(before)
    expect(card(page, 0).locator(".patch")).to_have_count(16)


@needs_browser
def test_a_click_on_a_head_shows_its_coefficients_above_its_contributions_until_all_heads_are_asked_for(visit):
    page = visit()
    before = [card(page, side).locator(".patches").inner_html() for side in (0, 1)]
    back = [
        lambda: head(page, 0, 2, 3).click(),
        lambda: card(page, 1).get_by_role("button", name="Show all heads by integrated-gradients").click(),
        lambda: choose(page, "Method", "default (integrated-gradients)"),
    ]
    page.get_by_role("button", name="Method and target").click()
    for go_back in back:
        head(page, 1, 2, 3).click()
        for side in (0, 1):
            expect(card(page, side).locator(".picture h4")).to_have_text(["Coefficients", "Contributions"])
            expect(card(page, side).locator(".patches")).to_have_count(2)
            expect(card(page, side).locator(".picture p")).to_contain_text(["layer 2, head 3"] * 2)
            expect(card(page, side).locator(".heads p")).to_contain_text(
                "integrated-gradients takes all heads together"
            )
            expect(head(page, side, 2, 3)).to_have_attribute("aria-pressed", "true")
        expect(card(page, 1).locator(".picture p").first).to_contain_text("All are positive")
        go_back()
        for side in (0, 1):
            expect(card(page, side).locator(".patches")).to_have_count(1)
            assert card(page, side).locator(".patches").inner_html() == before[side]


@needs_browser
def test_a_text_model_colours_the_words_and_shows_their_numbers(visit):
    page = visit()
    choose_text_model(page)
    explain(page, "a weak film")
    for side in (0, 1):
        expect(words(page, side)).to_have_text(["a", "weak", "film"])
    tokens = card(page, 0).locator(".word")
    colors = tokens.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert len(set(colors)) == 3
    assert all(re.fullmatch(r"\w+\n([+−].*|0)", shown) for shown in tokens.all_inner_texts())


@needs_browser
def test_bad_input_gives_one_line_html_is_shown_and_not_obeyed_and_the_page_goes_on(visit):
    page = visit()
    choose_text_model(page)
    explain(page, "   ")
    expect(page.locator(".message p")).to_have_text("There is nothing to explain yet: type a text.")
    expect(card(page, 0)).to_be_hidden()
    page.get_by_role("button", name=SENTENCES[2]).click()
    expect(words(page, 1)).to_have_text(SENTENCES[2].split())
    expect(page.locator(".message p")).to_be_hidden()
    explain(page, '<img src=x onerror="window.obeyed=1"> <b id=bold>bold</b>')
    expect(words(page, 0).filter(has_text="img")).to_have_count(1)
    assert page.evaluate("window.obeyed") is None
    assert page.locator("#bold").count() == 0


@needs_browser
def test_a_phone_shows_everything_without_scrolling_sideways(visit):
    page = visit(**PHONE)
    assert too_wide(page) <= 0
    assert card(page, 0).bounding_box()["y"] < card(page, 1).bounding_box()["y"]
    choose_text_model(page)
    expect(page.get_by_text("head 15").first).to_be_visible()
    cut = page.locator(".grid button").evaluate_all(
        "all => all.filter(one => one.scrollWidth > one.clientWidth).length"
    )
    assert cut == 0
    assert too_wide(page) <= 0
    explain(page, "good " * 60 + "un" * 60)
    expect(card(page, 0).locator(".note").last).to_contain_text("were left out")
    assert too_wide(page) <= 0


def response_to(checkpoints, text=None, image=None, method=DEFAULT, target=PREDICTED, chosen=None):
    return explained(checkpoints, checkpoints[0], method, target, chosen, text, image)


def test_counterparts_are_found_by_name_and_those_of_the_same_owner_first():
    known = ["a/x-tanhmax", "b/x-softmax", "c/alone-tanhmax", "d/other", "tanhmax-lab/y-softmax", "a/x-softmax"]
    others = ["a/x-softmax", "a/x-tanhmax", None, None, None, "a/x-tanhmax"]
    assert [counterpart_of(name, known) for name in known] == others
    known = ["a/x-tanhmax", "a/x-softmax", "b/alone-softmax", "c/other"]
    assert offered_models(known) == [("x", known[0]), ("alone-softmax", known[2]), ("other", known[3])]
    assert {Path(name).name for name in found_here()} >= {"digits-tanhmax", "digits-softmax"}


def test_a_decoder_is_explained_for_its_next_token_or_any_other(decoders):
    offered = opened(decoders, decoders[0])
    assert offered["target"]["allow_custom_value"]
    assert offered["text"]["value"] == examples_of(decoders[0])[0]
    for side in (0, 1):
        response = response_to(decoders, "the film was", target="good")
        assert "the logit of &quot; good&quot;" in response[f"title {side}"]["value"]
        assert re.findall("<b>(.*?)</b>", response[f"picture {side}"]["value"]) == ["the", "film", "was"]


def test_what_an_encoder_decoder_generates_is_shown_as_an_alignment(tmp_path):
    tokenizer = train_byte_level(["the film was not good"] * 9, vocab_size=280, max_length=64)
    config = BartConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, init_std=0.3, max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=0, eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=0, forced_eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BartForConditionalGeneration(config)
    model.generation_config.max_new_tokens = 4
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    response = response_to([str(tmp_path)], "the film was")
    assert response["picture 0"]["value"].startswith('<img alt="alignment" src="data:image/png')


def test_both_models_are_explained_for_the_class_that_the_first_predicts(texts):
    offered, alone = opened(texts, texts[0]), response_to(texts[:1], SENTENCES[0])
    assert (offered["text"]["visible"], offered["image"]["visible"]) == (True, False)
    assert offered["target"]["choices"] == [PREDICTED, "LABEL_0", "LABEL_1"]
    assert (alone["column 0"]["visible"], alone["column 1"]["visible"]) == (True, False)
    for sentence, verdict, aims in [
        (SENTENCES[0], "Both models predict “positive”.", ["its own prediction"] * 2),
        (
            SENTENCES[1],
            "The models differ; both are explained for “positive”.",
            ["its own prediction", "“positive”, which"],
        ),
    ]:
        response = response_to(FILMS, sentence)
        for side, aim in enumerate(aims):
            assert "the logit of positive" in response[f"title {side}"]["value"]
            assert verdict in response[f"title {side}"]["value"]
            assert f"red words support {aim}" in response[f"picture {side}"]["value"]
    chosen = response_to(FILMS, SENTENCES[1], target="negative")
    assert "Both models" not in chosen["title 0"]["value"]
    assert "red words support “negative”, blue" in chosen["picture 0"]["value"]


def test_the_example_that_the_page_opens_with_shows_coefficients_of_both_signs_beside_positive_ones():
    assert OPENS_WITH in found_here()[0]
    response = response_to(FILMS, SENTENCES[0])
    coefficients = [response[f"picture {side}"]["value"].split("<h4>Contributions")[0] for side in (0, 1)]
    signs = [set(re.findall("</b>(.)", one)) for one in coefficients]
    assert signs == [{"+", "−"}, {"+"}]


def test_the_coefficients_of_a_head_are_those_of_the_model(texts):
    shown = response_to(texts, SENTENCES[0], method="attnlrp", chosen=[1, 0])["picture 0"]["value"]
    model, tokenizer = loaded(texts[0])
    inputs = tokenizer(SENTENCES[0], return_tensors="pt")
    row = model(**inputs, output_attentions=True).attentions[1][0, 0, 0, 1:-1]  # [CLS] as the query, words as keys
    numbers = re.findall("</b>(.*?)</span>", shown.split("<h4>Contributions")[0])
    assert [float(number.replace("−", "-")) for number in numbers] == pytest.approx(row.tolist(), rel=0.06)


def test_words_are_escaped_also_where_a_tokenizer_keeps_html_in_one(texts):
    found = explanations.explain(*loaded(texts[0]), "a film")
    kept = replace(found.example, tokens=['<img src="x">'] * len(found.example.tokens))
    shown = pictures([replace(found, example=kept)], ["red & blue"])[0]
    assert "&lt;img src=&quot;x&quot;&gt;" in shown
    assert "<img" not in shown
    assert "red &amp; blue" in shown


def test_a_method_that_takes_a_head_explains_the_chosen_one(texts):
    response = response_to(texts, SENTENCES[0], method="attention", chosen=[1, 0])
    picture = response["picture 0"]["value"].split("<h4>Attention")[1]
    assert "layer 1, head 0" in picture
    assert "all heads together" not in response["heads 0"]["value"]


def test_every_cell_of_the_grid_of_heads_has_a_number_and_every_row_and_column_a_label(texts):
    grid = response_to(texts, SENTENCES[0])["heads 0"]["value"]
    assert re.findall(r">((?:layer|head) \d+)<", grid) == [
        *(f"head {head}" for head in range(16)),
        "layer 1",
        "layer 0",
    ]
    assert len(re.findall(r">(?:[+−]\d{1,2}|0)</button>", grid)) == 32


def test_a_long_text_shows_the_chosen_head_and_a_way_back(texts):
    response = response_to(texts, "good " * 100, chosen=[0, 1])
    assert "layer 0, head 1" in response["picture 0"]["value"]
    assert 'value="[]"' in response["heads 0"]["value"]


def started(*words, **environment):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, str(ROOT / "space/app.py"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)


def test_a_missing_package_or_checkpoint_is_named_in_one_line(tmp_path):
    done = started("model_cards/no-such-checkpoint")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "error: expected a checkpoint folder at model_cards/no-such-checkpoint"
    )
    assert "Traceback" not in done.stderr
    (tmp_path / "gradio.py").write_text("raise ModuleNotFoundError(\"No module named 'gradio'\", name='gradio')")
    done = started(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    lines = ["importing gradio …", "error: gradio is not installed; run: pip install -e '.[space]'"]
    assert (done.returncode, done.stderr.splitlines()) == (2, lines)


@pytest.mark.parametrize("image", [Image.new("RGBA", (9, 9)), Image.new("I;16", (9, 9))], ids=["clear", "16 bits"])
def test_an_upload_arrives_as_it_was(image, tmp_path):
    image.save(tmp_path / "image.png")
    upload = next(block for block in build_page(DIGITS).blocks.values() if isinstance(block, gr.Image))
    given = upload.preprocess(gr.data_classes.ImageData(path=str(tmp_path / "image.png"), orig_name="image.png"))
    assert Path(given).read_bytes() == (tmp_path / "image.png").read_bytes()


def test_a_file_that_is_no_image_is_named_without_its_folder(tmp_path):
    (tmp_path / "image.png").write_text("no image")
    said = response_to(DIGITS, image=str(tmp_path / "image.png"))["message"]["value"]
    assert "image.png cannot be read" in said
    assert str(tmp_path) not in said


def test_a_text_is_never_taken_as_the_name_of_a_file(texts):
    assert response_to(texts, str(ROOT / "README.md"))["results"]["visible"] is True


def test_a_text_beyond_every_limit_is_cut_before_it_is_tokenized(texts):
    title = response_to(texts, "good " * 5000)["title 0"]["value"]
    left_out = int(re.search(r"its last (\d+) word pieces were left out", title)[1])
    assert left_out < LONGEST / 2  # not of all 5000 words
