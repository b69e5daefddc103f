"""The notebook of the documentation, run by IPython, and its output in a browser."""

import shutil
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from playwright.sync_api import sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/notebooks/explanations.ipynb"


@pytest.fixture(scope="module")
def outputs():
    """What the last line of each cell shows, by MIME type."""
    shell = InteractiveShell.instance()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(NOTEBOOK.parent)
        cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
        results = [shell.run_cell(cell.source) for cell in cells]
    for result in results:
        result.raise_error()
    return [shell.display_formatter.format(result.result)[0] for result in results]


@pytest.mark.slow
def test_the_notebook_runs_and_its_objects_show_themselves(outputs):
    _, _, text, scores, words, notes, image = outputs
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
        page.set_content(outputs[2]["text/html"])
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
