"""The Python example at the top of a card runs as it stands, offline."""

import json
import re
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers import ViTImageProcessor

from hf_bidir import (
    BidirBertConfig,
    BidirBertForMaskedLM,
    BidirBertForSequenceClassification,
    BidirBertForTokenClassification,
    BidirViTConfig,
    BidirViTForImageClassification,
)
from hf_bidir.common.images import open_image
from hf_bidir.hub import build_model_card
from tests.tiny_models import WORDS, word_tokenizer

ROOT = Path(__file__).parents[2]
WITH_WEIGHTS = sorted(file.parent for file in (ROOT / "model_cards").glob("*/model.safetensors"))
ENCODER = ROOT / "model_cards/minilm-tanhmax"
SHAPE = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 8}
TEXT_MODELS = [BidirBertForSequenceClassification, BidirBertForMaskedLM, BidirBertForTokenClassification]


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the example connected to something"))


def example_of(card: str) -> str:
    """All that the card shows: loading, explaining, and a prediction with its coefficients."""
    return "\n".join(re.findall(r"```python\n(.*?)\n```", card, re.DOTALL))


def run(card: str) -> dict:
    variables = {}
    exec(example_of(card), variables)
    return variables


def save_text_model(model_class, folder):
    model_class(BidirBertConfig(vocab_size=len(WORDS), **SHAPE)).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)


def save_image_model(folder):
    BidirViTForImageClassification(BidirViTConfig(image_size=8, patch_size=4, **SHAPE)).save_pretrained(folder)
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(folder)


@pytest.mark.parametrize(
    "folder", [folder for folder in WITH_WEIGHTS if folder != ENCODER], ids=lambda folder: folder.name
)
def test_the_example_of_every_committed_checkpoint_prints_a_prediction(folder, offline, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    variables = run((folder / "README.md").read_text(encoding="utf-8"))
    label, probability = capsys.readouterr().out.splitlines()[-1].rsplit(maxsplit=1)
    assert label
    assert 0 < float(probability) <= 1
    coefficients = variables["coefficients"]
    assert all(layer.ndim == 4 for layer in coefficients)
    assert any((layer < 0).any() for layer in coefficients) == folder.name.endswith("tanhmax")


@pytest.mark.skipif(ENCODER not in WITH_WEIGHTS, reason="the sdist has no large weights")
def test_the_example_of_the_committed_encoder_embeds_sentences(offline, monkeypatch):
    monkeypatch.chdir(ENCODER)
    assert run((ENCODER / "README.md").read_text(encoding="utf-8"))["vectors"].shape == (2, 384)


@pytest.mark.parametrize("model_class", [*TEXT_MODELS, None], ids=lambda head: head.__name__ if head else "images")
def test_the_example_of_a_users_model_runs_in_its_folder(model_class, offline, tmp_path, monkeypatch, capsys):
    save_text_model(model_class, tmp_path) if model_class else save_image_model(tmp_path)
    Image.new("RGB", (8, 8), "red").save(tmp_path / "image.png")  # that the card explains
    monkeypatch.chdir(tmp_path)
    assert len(run(build_model_card(tmp_path).text)["coefficients"]) == 2
    assert "(y = " in capsys.readouterr().out


def test_the_example_sees_an_image_as_training_does(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 4), np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "image.png", exif=turned)  # with transparent pixels
    save_image_model(tmp_path)
    example = example_of(build_model_card(tmp_path).text).splitlines()
    lines = [line for line in example if "exif_transpose" in line or "alpha_composite" in line]
    variables = {"Image": Image, "ImageOps": ImageOps, "image": Image.open(tmp_path / "image.png")}
    exec("\n".join(lines), variables)
    np.testing.assert_array_equal(variables["image"], open_image(tmp_path / "image.png"))


def example_with(folder, **fields):
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    return example_of(build_model_card(folder).text)


def test_a_model_with_several_labels_prints_logits_because_softmax_is_no_probability_there(tmp_path):
    save_text_model(BidirBertForSequenceClassification, tmp_path)
    example = example_with(tmp_path, problem_type="multi_label_classification")
    assert "print(outputs.logits)" in example
    assert "softmax" not in example


def test_a_model_without_a_head_or_a_tokenizer_is_loaded_only(tmp_path):
    save_text_model(BidirBertForSequenceClassification, tmp_path)
    (tmp_path / "tokenizer_config.json").rename(tmp_path / "renamed")
    load = '.from_pretrained(".", trust_remote_code=True)'
    assert example_with(tmp_path).splitlines()[-1] == f"model = AutoModelForSequenceClassification{load}"
    (tmp_path / "renamed").rename(tmp_path / "tokenizer_config.json")
    assert example_with(tmp_path, architectures=["BidirBertModel"]).splitlines()[-1] == f"model = AutoModel{load}"


def test_on_the_hub_the_example_image_is_downloaded_with_the_same_revision(tmp_path):
    save_image_model(tmp_path)
    (tmp_path / "example.png").touch()
    example = example_of(build_model_card(tmp_path, "someone/prints", "v1").text)
    compile(example, "card", "exec")
    assert 'hf_hub_download("someone/prints", "example.png", revision="v1")' in example
