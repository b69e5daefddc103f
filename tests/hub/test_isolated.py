"""isolated_forward: a checkpoint folder in a clean process without hf_bidir."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_bidir import BidirViTConfig, BidirViTForImageClassification
from hf_bidir.hub import isolated_forward

IMAGES = {"pixel_values": torch.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8)}


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = BidirViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=8, patch_size=2, num_channels=1, num_labels=3,
    )  # fmt: skip
    return BidirViTForImageClassification(config).eval()


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def run(folder):
    return isolated_forward(folder, "AutoModelForImageClassification", IMAGES)


def test_logits_from_the_isolated_process_equal_those_of_the_saved_model(model, folder):
    with torch.inference_mode():
        expected = model(**IMAGES).logits
    torch.testing.assert_close(run(folder)["logits"], expected, rtol=0, atol=1e-6)


def test_an_import_of_hf_bidir_fails_in_the_isolated_process(folder):
    code = next(folder.glob("modeling_*.py"))
    code.write_text("import hf_bidir\n" + code.read_text())
    with pytest.raises(RuntimeError, match="hf_bidir"):
        run(folder)


def test_missing_and_unexpected_weights_are_one_error_that_names_them(folder):
    weights = load_file(folder / "model.safetensors")
    weights["stranger"] = weights.pop("classifier.bias")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match=r"missing_keys.*classifier\.bias.*unexpected_keys.*stranger"):
        run(folder)


def test_a_failure_in_the_forward_becomes_one_error_with_its_last_lines(folder):
    message = r"AutoModelForImageClassification(.|\n)*isolated process(.|\n)*ValueError: .*channel dimension"
    with pytest.raises(RuntimeError, match=message):
        isolated_forward(folder, "AutoModelForImageClassification", {"pixel_values": torch.zeros(1, 3, 8, 8)})


def test_a_folder_without_a_checkpoint_is_refused_before_any_process_starts(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        run(tmp_path)
