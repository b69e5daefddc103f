"""Does the API reference name everything that is public? `make docs` checks the reverse: that every name exists."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import hf_bidir

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


@pytest.mark.parametrize("page", ["explain", "hub", "hf_bidir"])
def test_every_public_name_is_in_the_reference(page):
    package = hf_bidir if page == "hf_bidir" else import_module(f"hf_bidir.{page}")
    public = hf_bidir._HOMES if page == "hf_bidir" else package.__all__  # `Bidir…` classes are described in prose
    named = re.findall(r"^::: .*\.(\w+)$", (REFERENCE / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(public) <= set(named)


@pytest.mark.parametrize("name", ["research.faithfulness", "research.rank_collapse"])
def test_a_package_that_is_shown_as_a_whole_has_no_name_hidden_by_a_file_of_that_name(name):
    package = import_module(name)
    assert f"::: {name}\n" in (REFERENCE / f"{name.partition('.')[2]}.md").read_text(encoding="utf-8")
    assert not set(package.__all__) & {file.stem for file in Path(package.__file__).parent.glob("*.py")}
