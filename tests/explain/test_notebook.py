"""The notebook of the documentation, run by IPython."""

from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

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
