"""The demo with a few steps: once to the end, then again over the finished run."""

import re

import pytest
from matplotlib.image import imread

from tests.training.conftest import few_digits
from training import demo


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run whose accuracy is too low, as the demo says at its end."""
    folder = tmp_path_factory.mktemp("runs") / "digits-tanhmax"
    with few_digits(), pytest.raises(SystemExit, match="expected a test accuracy of at least"):
        demo.main(["--output_dir", str(folder), "--disable_tqdm", "true", "--max_steps", "2"])
    return folder


def test_the_demo_leaves_a_picture_of_attention_and_a_card_that_shows_it(folder):
    assert imread(folder / "attention.png").std() > 0
    assert imread(folder / "digit.png").shape[:2] == (8, 8)
    assert "(attention.png)" in (folder / "README.md").read_text(encoding="utf-8")


def test_a_second_demo_uses_the_finished_run_and_lists_its_files(folder, capsys, monkeypatch):
    monkeypatch.setattr(demo, "EXPECTED_ACCURACY", 0.0)
    weights = (folder / "model.safetensors").stat()
    demo.main(["--output_dir", str(folder)])
    printed = capsys.readouterr().out
    assert "Using the finished run" in printed
    difference = re.search(r"largest difference of a logit (\S+)", printed).group(1)
    assert float(difference) <= 1e-5
    assert f"In {folder}" in printed
    assert (folder / "model.safetensors").stat() == weights
