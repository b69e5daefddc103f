"""`hf-bidir demo`: training and explained texts."""

import re

import pytest
from typer.testing import CliRunner

from hf_bidir.cli import app
from hf_bidir.finetune.data.synthetic import SETS, SyntheticTexts


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder, fewer = tmp_path_factory.mktemp("demo"), SyntheticTexts(texts=3000, vocabulary=400, polar=40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SETS, "small", fewer)
        yield folder, CliRunner().invoke(app, ["demo", "--output", str(folder)])


def test_the_demo_learns_the_polar_words_and_shows_what_they_add(shown):
    folder, told = shown
    assert told.exit_code == 0, told.output
    assert float(re.search(r"texts: (\d\.\d+)", told.stdout)[1]) > 0.98
    added = {word: float(number) for word, number in re.findall(r"(\w+\d+)\s.*to positive ([+-][\d.]+)", told.stdout)}
    assert len(added) == 4
    assert sum(added[word] for word in added if word.startswith("neg")) < -1
    assert sum(added[word] for word in added if word.startswith("pos")) > 1
    assert {"negative.png", "positive.png"} <= {file.name for file in folder.iterdir()}


def test_the_demo_ends_by_saying_whether_its_coefficients_have_both_signs(shown):
    signs = set(re.findall(r"coefficient ([+-])", shown[1].stdout))
    says_both = "have both signs" in shown[1].stdout.splitlines()[-1]
    assert says_both == (signs == {"+", "-"})


def test_a_second_time_nothing_is_trained_again(shown):
    folder, told = shown
    weights = folder / "run" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = CliRunner().invoke(app, ["demo", "--output", str(folder)])
    assert weights.stat().st_mtime_ns == before
    assert again.stdout.splitlines()[-8:] == told.stdout.splitlines()[-8:]


def test_an_unknown_activation_is_one_line(tmp_path):
    told = CliRunner().invoke(app, ["demo", "--attn-activation", "tanmax", "--output", str(tmp_path / "demo")])
    assert told.exit_code == 2
    assert 'Did you mean "tanhmax"?' in told.stderr.splitlines()[-1]
