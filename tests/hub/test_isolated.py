"""isolated_forward: a checkpoint folder in a clean process without hf_bidir. tests/modeling compares its outputs."""

import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_bidir import signed
from hf_bidir.hub import isolated, isolated_forward
from hf_bidir.hub.isolated import main
from tests.tiny_models import inputs_of, logits_of, stock_model

AUTO = "AutoModelForImageClassification"
UNLESS_MISSING = """
try:
    import hf_bidir
except ImportError:
    pass
else:
    raise RuntimeError("hf_bidir can be imported")
"""


@pytest.fixture
def folder(tmp_path):
    signed(stock_model("vit")).save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_the_outputs_come_from_a_process_of_its_own_in_which_hf_bidir_is_missing(folder, monkeypatch):
    monkeypatch.setattr(isolated, "subprocess", subprocess)
    code = next(folder.glob("modeling_*.py"))
    code.write_text(code.read_text() + UNLESS_MISSING)
    found = isolated_forward(folder, AUTO, inputs_of("vit"))
    expected = logits_of(signed(stock_model("vit")), inputs_of("vit"))
    torch.testing.assert_close(found["logits"], expected, rtol=0, atol=1e-5)


def test_an_import_of_hf_bidir_is_an_error_that_names_the_class_and_the_import(folder):
    code = next(folder.glob("modeling_*.py"))
    code.write_text("import hf_bidir\n" + code.read_text())
    with pytest.raises(RuntimeError, match=rf"{AUTO}(.|\n)*isolated process(.|\n)*hf_bidir"):
        isolated_forward(folder, AUTO, inputs_of("vit"))


def test_missing_and_unexpected_weights_are_one_error_that_names_them(folder):
    weights = load_file(folder / "model.safetensors")
    weights["stranger"] = weights.pop("classifier.bias")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SystemExit, match=r"missing_keys.*classifier\.bias.*unexpected_keys.*stranger"):
        main(str(folder), AUTO, "inputs.safetensors", "outputs.safetensors")  # what the process runs
