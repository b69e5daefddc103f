"""The commands of SKILL.md run, one after the other, on a tiny model."""

import re
import shlex
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

from hf_bidir.cli import app
from tests.tiny_models import stock_model, word_tokenizer

SKILL = (Path(__file__).parents[1] / "SKILL.md").read_text(encoding="utf-8")
SHORTER = {"--steps 300": "--steps 2"}


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_every_command_of_the_skill_runs(family, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    tokenizer = word_tokenizer()
    tokenizer.eos_token = "[SEP]"
    for saved in (stock_model(family, **labels if family == "bert" else {}), tokenizer):
        saved.save_pretrained("runs/mine")
    table = pandas.DataFrame(
        {"text": ["a good film", "this film is bad"] * 150, "label": ["positive", "negative"] * 150}
    )
    for name in ("train.csv", "test.csv"):
        table.to_csv(name, index=False)
    block = re.search(r"```bash\n(.*?)```", SKILL, re.DOTALL)[1]
    for old, new in SHORTER.items():
        block = block.replace(old, new)
    commands = [line for line in block.splitlines() if line.startswith("hf-bidir")]
    assert len(commands) == 5
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, f"{command}\n{done.output}"
