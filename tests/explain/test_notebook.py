"""The notebook of the documentation, run by Jupyter's client, and its output in a browser."""

import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient
from playwright.sync_api import sync_playwright

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


def color_of(word) -> tuple[int, int, int]:
    """Red, green and blue of the background."""
    text = word.evaluate("element => getComputedStyle(element).backgroundColor")
    return tuple(int(part) for part in text.removeprefix("rgb(").removesuffix(")").split(", "))
