"""The folders of model_cards/ with weights carry this version's model code."""

import shutil
from pathlib import Path

import pytest

from hf_bidir.common.files import read_json
from hf_bidir.hub.push import write_code

CARDS = Path(__file__).parents[2] / "model_cards"
WITH_WEIGHTS = sorted(file.parent for file in CARDS.glob("*/model.safetensors"))


@pytest.mark.parametrize("folder", WITH_WEIGHTS, ids=lambda folder: folder.name)
def test_the_committed_code_is_what_the_command_writes(folder, tmp_path):
    shutil.copyfile(folder / "config.json", tmp_path / "config.json")
    write_code(tmp_path)
    code = [{file.name: file.read_bytes() for file in path.glob("*.py")} for path in (folder, tmp_path)]
    assert code[0], "run: python -m training.card_code"
    assert code[0] == code[1], "run: python -m training.card_code"
    assert read_json(tmp_path / "config.json") == read_json(folder / "config.json")
    assert len(code[0]) <= 10
    assert sum(map(len, code[0].values())) <= 105_000
