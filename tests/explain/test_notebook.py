"""The notebook of the documentation, run by Jupyter's client, and its output in a browser."""

import io
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient
from PIL import Image
from playwright.sync_api import sync_playwright

from hf_bidir.explain import explain
from tests.explain.conftest import NAMES, bert, tokenizer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/notebooks/explanations.ipynb"


@pytest.fixture(scope="module")
def outputs():
    """The rich outputs of every cell, by MIME type."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    manager = KernelManager()
    manager.kernel_spec.argv[0] = sys.executable
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    try:
        NotebookClient(notebook, km=manager, timeout=300, resources=resources).execute()
    finally:
        manager.shutdown_kernel(now=True)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[output["data"] for output in cell.outputs if "data" in output] for cell in cells]


@pytest.mark.slow
def test_the_notebook_runs_and_its_objects_show_themselves(outputs):
    _, _, (text,), (scores,), (words,), (notes,), (image,) = outputs
    assert text["text/html"].count('class="word"') == 7
    assert "'charming'" in scores["text/plain"]
    assert "<th>charming</th>" in words["text/html"]
    assert "word pieces were left out" in notes["text/plain"]
    assert "data:image/png;base64," in image["text/html"]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; apt-get install chromium")
def test_a_browser_shows_supporting_words_in_red_and_opposing_ones_in_blue(outputs):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_content(outputs[2][0]["text/html"])
        charming, weak = (page.locator(".word b", has_text=word).first for word in ("charming", "weak"))
        red, _, blue = color_of(charming)
        assert red > blue
        red, _, blue = color_of(weak)
        assert blue > red
        assert charming.bounding_box()["y"] == weak.bounding_box()["y"]  # words stand in one line
        browser.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; apt-get install chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_and_sentences_contrast_with_the_background_of_a_page_and_of_a_notebook(scheme, tmp_path):
    found = explain(bert(**NAMES), tokenizer(), "a good film")
    found.to_html(tmp_path / "page.html")
    background, own = {"light": ("white", "black"), "dark": ("#111", "#eee")}[scheme]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(color_scheme=scheme)
        page.set_content(f'<body style="background: {background}; color: {own}">{found._repr_html_()}')
        notebook = shades(page.locator(".word small").first.screenshot())
        page.goto((tmp_path / "page.html").as_uri())
        written = page.evaluate("getComputedStyle(document.body).color")
        assert written == {"light": "rgb(0, 0, 0)", "dark": "rgb(255, 255, 255)"}[scheme]
        for darkest, lightest in (notebook, shades(page.locator(".word small").first.screenshot())):
            assert lightest - darkest > 120
        browser.close()


def shades(screenshot: bytes) -> tuple[int, int]:
    """The darkest and the lightest grey of a picture."""
    return Image.open(io.BytesIO(screenshot)).convert("L").getextrema()


def color_of(word) -> tuple[int, int, int]:
    """Red, green and blue of the background."""
    text = word.evaluate("element => getComputedStyle(element).backgroundColor")
    return tuple(int(part) for part in text.removeprefix("rgb(").removesuffix(")").split(", "))
