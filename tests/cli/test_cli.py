"""The command line: help of every command; output folders, options and errors of `hf-bidir convert`."""

import json
import re

import pytest
from transformers import BertConfig, BertModel, BigBirdPegasusConfig, BigBirdPegasusModel
from typer.testing import CliRunner

from hf_bidir.cli import app

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 30}

COMMANDS = sorted(command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands)


@pytest.fixture
def stock(tmp_path):
    BertModel(BertConfig(**SHAPE)).save_pretrained(tmp_path / "stock")
    return str(tmp_path / "stock")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example_and_one_spelling_per_option(command):
    shown = run(command, "--help").output
    assert f"  hf-bidir {command}" in shown
    options = [line.split()[0] for line in shown.partition("Options:")[2].splitlines() if line.startswith("  --")]
    assert options[-1] == "--help"
    assert not [option for option in options if "_" in option or option.endswith(",")]
    listed = run("--help").output.partition("Commands:")[2]
    assert re.search(rf"^  {command} +[A-Z].*\.$", listed, re.MULTILINE), listed  # not cut off


@pytest.mark.parametrize(
    "command",
    [
        "evaluate nowhere --text_column a --label_column b --test_file c --drop_bad_rows",
        "convert nowhere out --train_file a --image_column b --max_steps 3 --keep_signs",
    ],
)
def test_names_of_options_in_errors_of_training_are_understood(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else the Hub is asked for "nowhere"
    refused = run(*command.split())
    assert (refused.exit_code, "nowhere" in refused.output) == (2, True)
    assert "No such option" not in refused.output


def test_convert_saves_a_signed_checkpoint_and_to_softmax_a_stock_one(stock, tmp_path):
    for source, output, *options, kind, mass in (
        ("stock", "signed", "bidir_bert", 0.0),
        ("signed", "back", "--to-softmax", "bert", None),
        ("stock", "mass", "--negative-mass", "0.25", "bidir_bert", 0.25),
    ):
        assert run("convert", tmp_path / source, tmp_path / output, *options).exit_code == 0
        config = json.loads((tmp_path / output / "config.json").read_text())
        assert (config["model_type"], config.get("attn_negative_mass")) == (kind, mass)


def test_an_output_folder_in_use_is_replaced_only_when_asked(stock, tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used/precious").touch()
    refused = run("convert", stock, tmp_path / "used")
    assert (refused.exit_code, "--overwrite" in refused.output) == (2, True)
    assert (tmp_path / "used/precious").exists()
    assert run("convert", stock, tmp_path / "used", "--overwrite").exit_code == 0
    assert not (tmp_path / "used/precious").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{stock}/.."], "config.json"),
        (["{stock}", "--attn-activation", "tanmax"], 'Did you mean "tanhmax"?'),
        (["{stock}", "--to-softmax"], "nothing to undo"),
        (["{stock}", "--to-softmax", "--negative-mass", "0.5"], "--to-softmax cannot be combined with"),
        (["{stock}", "--steps", "5"], "need --heal FILE"),
        (["{stock}", "--column", "text"], "need --heal FILE"),
        (["{stock}", "--keep-signs"], "need --heal FILE"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(stock, tmp_path, words, message):
    source, *options = (word.format(stock=stock) for word in words)
    result = run("convert", source, tmp_path / "out", *options)
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()


def test_convert_names_what_cannot_be_signed_and_partial_accepts_a_part(tmp_path):
    sides = {f"{side}_layers": 2 for side in ("encoder", "decoder")}
    config = BigBirdPegasusConfig(**sides, d_model=16, vocab_size=20, max_position_embeddings=16)
    BigBirdPegasusModel(config).save_pretrained(tmp_path / "stock")
    command = ["convert", tmp_path / "stock", tmp_path / "out"]
    refused = run(*command)
    assert (refused.exit_code, "BigBirdPegasusModel" in refused.stderr.splitlines()[-1]) == (2, True)
    assert run(*command, "--partial").exit_code == 0
    assert (tmp_path / "out/config.json").is_file()
