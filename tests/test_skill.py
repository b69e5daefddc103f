"""The commands of SKILL.md run, one after the other, on a tiny model."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hf_bidir.cli import app
from tests.tiny_models import stock_model, word_tokenizer

SKILL = (Path(__file__).parents[1] / "SKILL.md").read_text(encoding="utf-8")
COMMANDS = re.findall("^hf-bidir (.*)$", SKILL, re.MULTILINE)
CLASSES = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
TABLE = "text,label\n" + "a good film,positive\nthis film is bad,negative\n" * 150


@pytest.mark.parametrize(("family", "fields"), [("bert", CLASSES), ("llama", {})])
def test_every_command_of_the_skill_runs(family, fields, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = word_tokenizer()
    tokenizer.eos_token = "[SEP]"
    for part in (stock_model(family, **fields), tokenizer):
        part.save_pretrained("runs/mine")
    for name in ("train.csv", "test.csv"):
        Path(name).write_text(TABLE)
    assert len(COMMANDS) == 5
    for command in COMMANDS:
        done = CliRunner().invoke(app, shlex.split(command.replace("--steps 300", "--steps 2")))
        assert done.exit_code == 0, f"{command}\n{done.output}"
