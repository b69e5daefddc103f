"""What scripts do before they import torch: help and mistakes in options are answered from the record."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from hf_bidir.cli.script import parser_of, typed_options
from hf_bidir.cli.start import recorded_parser
from hf_bidir.common.errors import InputError
from training import distill
from training.record_options import FILE, record

ROOT = Path(__file__).parents[2]


def test_the_record_has_the_options_of_all_scripts():
    assert json.loads(FILE.read_text(encoding="utf-8")) == record(), "run `make tables`"


@pytest.mark.parametrize(
    ("word", "status", "text"),
    [
        ("--help", 0, "--negative_mass_until"),
        ("--help-all", 0, "--optim_target_modules"),
        ("--learning_rat=1", 2, 'Did you mean "--learning_rate"?'),
        ("--seed=one", 2, "invalid int value: 'one'"),
        ("nowhere.yaml", 2, "expected a YAML recipe at nowhere.yaml"),
    ],
)
def test_help_and_mistakes_are_answered_without_torch(word, status, text, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "COLUMNS": "120"}
    command = [sys.executable, str(ROOT / "training/distill.py"), word]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    assert text in done.stdout + done.stderr


@pytest.mark.parametrize("word", ["--help", "--help-all"])
def test_the_recorded_help_is_that_of_the_options(word, capsys):
    texts = []
    for parser in (parser_of(distill.OPTIONS, "about"), recorded_parser(record(), "distill.py", "about")):
        with pytest.raises(SystemExit):
            typed_options(parser, [word])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_the_recorded_options_accept_what_the_scripts_accept():
    words = ["--seed", "3", "--bf16", "--train_file", "a", "b", "--no_centre", "--accelerator_config", "{}"]
    typed_options(recorded_parser(record(), "distill.py", None), words)
    with pytest.raises(InputError, match="unknown option: --centres"):
        typed_options(recorded_parser(record(), "distill.py", None), ["--centres"])


def test_a_terminal_is_told_what_the_first_seconds_are_for(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit(0)")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    terminal, stderr = pty.openpty()
    command = [sys.executable, str(ROOT / "training/distill.py"), "--train_file", "texts.txt"]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr, timeout=60, check=False)
    assert os.read(terminal, 200).decode().strip() == "importing torch and transformers …"


def test_a_package_that_a_script_lacks_is_named_with_the_command_that_installs_it(tmp_path):
    (tmp_path / "datasets.py").write_text("raise ModuleNotFoundError(\"No module named 'datasets'\", name='datasets')")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, str(ROOT / "training/distill.py"), "--train_file", "texts.txt"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "error: datasets is not installed; run: pip install -e '.[train]'\n")
