"""The folders of model_cards/ with weights carry this version's model code, and load without the package."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageClassification

from hf_bidir.common.files import read_json
from hf_bidir.hub.isolated import CHILD
from hf_bidir.hub.push import write_code
from tests.processes import run_python

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


def test_a_folder_copied_out_of_the_repository_computes_the_same_in_a_fresh_process_without_the_package(tmp_path):
    source, folder = CARDS / "digits-tanhmax", tmp_path / "copied"
    shutil.copytree(source, folder)
    model = AutoModelForImageClassification.from_pretrained(source).eval()
    size = model.config.image_size
    pixels = torch.rand(2, model.config.num_channels, size, size, generator=torch.Generator().manual_seed(0))
    save_file({"pixel_values": pixels}, tmp_path / "inputs")
    words = [str(folder), "AutoModelForImageClassification", str(tmp_path / "inputs"), str(tmp_path / "outputs")]
    program = f"import runpy\nrunpy.run_path({str(CHILD)!r})['main'](*{words})"
    environment = {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    run_python(program, isolated=True, fresh=True, cwd=tmp_path, **environment)
    torch.testing.assert_close(load_file(tmp_path / "outputs")["logits"], model(pixels).logits, rtol=0, atol=1e-5)
