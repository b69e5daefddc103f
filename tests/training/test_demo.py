"""The demo with fewer epochs than `make demo`: once to the end, then again over the finished run."""

import json
import re

import pytest
from matplotlib.image import imread

from training import demo

EXPECTED = 0.4  # of so few epochs
SMALLER = ["--num_hidden_layers", "2", "--per_device_train_batch_size", "16", "--learning_rate", "4e-3"]


@pytest.fixture(scope="module", autouse=True)
def fewer_epochs():
    """The demo expects less than after all epochs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "EXPECTED_ACCURACY", EXPECTED)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory, fewer_epochs):
    """A demo run to its end; the demo leaves by SystemExit if one of its own checks fails."""
    folder = tmp_path_factory.mktemp("runs") / "digits-tanhmax"
    try:
        demo.main(["--output_dir", str(folder), "--disable_tqdm", "true", "--num_train_epochs", "3", *SMALLER])
    except SystemExit as failure:
        pytest.fail(f"the demo failed: {failure}")
    return folder


def test_the_demo_learns_the_digits(folder):
    assert json.loads((folder / "all_results.json").read_text())["test_accuracy"] >= EXPECTED


def test_the_demo_leaves_a_picture_of_attention_and_a_card_that_shows_it(folder):
    assert imread(folder / "attention.png").std() > 0
    assert imread(folder / "digit.png").shape[:2] == (8, 8)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "(attention.png)" in card


def test_a_second_demo_uses_the_finished_run_and_lists_its_files(folder, capsys):
    weights = (folder / "model.safetensors").stat()
    demo.main(["--output_dir", str(folder)])
    printed = capsys.readouterr().out
    assert "Using the finished run" in printed
    difference = re.search(r"largest difference of a logit (\S+)", printed).group(1)
    assert float(difference) <= 1e-5
    assert f"In {folder}" in printed
    assert (folder / "model.safetensors").stat() == weights
