"""The Python example at the top of a card runs as it stands, offline."""

import re
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from hf_bidir import (
    BidirBertConfig,
    BidirBertForMaskedLM,
    BidirBertForSequenceClassification,
    BidirBertForTokenClassification,
    BidirViTConfig,
    BidirViTForImageClassification,
)
from hf_bidir.common.images import open_image
from hf_bidir.finetune.data.image_data import new_image_processor
from hf_bidir.finetune.data.tokenizer import train_wordpiece
from hf_bidir.hub import build_model_card
from hf_bidir.hub.snippet import AS_IN_TRAINING, Checkpoint, snippet

ROOT = Path(__file__).parents[2]
WITH_WEIGHTS = sorted(file.parent for file in (ROOT / "model_cards").glob("*/model.safetensors"))
SHAPE = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 8}


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the example connected to something"))


def example_of(card: str) -> str:
    return re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]


def run(card: str) -> dict:
    variables = {}
    exec(example_of(card), variables)
    return variables


@pytest.mark.parametrize("folder", WITH_WEIGHTS, ids=lambda folder: folder.name)
def test_the_example_of_every_committed_checkpoint_prints_a_prediction(folder, offline, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    variables = run((folder / "README.md").read_text(encoding="utf-8"))
    label, probability = capsys.readouterr().out.splitlines()[-1].rsplit(maxsplit=1)
    assert label
    assert 0 < float(probability) <= 1
    coefficients = variables["coefficients"]
    assert all(layer.ndim == 4 for layer in coefficients)
    assert any((layer < 0).any() for layer in coefficients) == folder.name.endswith("tanhmax")


def test_the_small_checkpoints_are_committed_with_their_weights_and_one_in_half_precision():
    sizes = {folder.name: (folder / "model.safetensors").stat().st_size for folder in WITH_WEIGHTS}
    half = sizes.pop("sst2-minilm-tanhmax", 0)  # missing from the sdist
    assert len(sizes) >= 8
    assert max(sizes.values()) < 10_000_000
    assert half < 50_000_000


TEXT_MODELS = [BidirBertForSequenceClassification, BidirBertForMaskedLM, BidirBertForTokenClassification]


@pytest.mark.parametrize("has_code", [True, False])
@pytest.mark.parametrize("model_class", TEXT_MODELS)
def test_the_example_of_a_users_text_model_runs_in_its_folder(
    model_class, has_code, offline, tmp_path, monkeypatch, capsys
):
    torch.manual_seed(0)
    tokenizer = train_wordpiece(["a good film", "a bad film"], vocab_size=40, max_length=16)
    model_class(BidirBertConfig(vocab_size=len(tokenizer), **SHAPE)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for file in [] if has_code else tmp_path.glob("*.py"):
        file.unlink()
    monkeypatch.chdir(tmp_path)
    variables = run(build_model_card(tmp_path).text)
    assert len(variables["coefficients"]) == 2
    assert capsys.readouterr().out


def test_the_example_of_a_users_image_model_runs_in_its_folder(offline, tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    BidirViTForImageClassification(BidirViTConfig(image_size=8, patch_size=4, **SHAPE)).save_pretrained(tmp_path)
    new_image_processor(8).save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert len(run(build_model_card(tmp_path).text)["coefficients"]) == 2
    assert capsys.readouterr().out.startswith("LABEL_")


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK"])
def test_the_example_sees_an_image_as_training_does(mode, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 4), np.uint8)
    image = Image.fromarray(pixels)
    image = image.quantize(9) if mode == "P" else image.convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "image.tif" if mode == "CMYK" else tmp_path / "image.png", exif=exif)
    file = next(tmp_path.iterdir())
    variables = {"Image": Image, "ImageOps": ImageOps, "image": Image.open(file)}
    exec("\n".join(AS_IN_TRAINING), variables)
    np.testing.assert_array_equal(variables["image"], open_image(file))


def test_a_model_with_several_labels_prints_logits_because_softmax_is_no_probability_there():
    checkpoint = Checkpoint("x", "AutoModelForSequenceClassification", "AutoTokenizer", has_single_label=False)
    assert "print(outputs.logits)" in snippet(checkpoint)
    assert "softmax" not in snippet(checkpoint)


@pytest.mark.parametrize("auto_class", ["AutoModelForObjectDetection", "AutoModelForQuestionAnswering", "AutoModel"])
def test_a_task_without_an_example_is_loaded_only(auto_class):
    code = snippet(Checkpoint("x", auto_class, "AutoTokenizer"))
    compile(code, "card", "exec")
    assert code.endswith(f"model = {auto_class}.from_pretrained(source)")


def test_on_the_hub_the_example_image_is_downloaded_with_the_same_revision():
    names = {"repo_id": "someone/prints", "revision": "v1", "has_example_image": True}
    code = snippet(Checkpoint("prints", "AutoModelForImageClassification", "AutoImageProcessor", **names))
    compile(code, "card", "exec")
    assert 'hf_hub_download(source, "example.png", revision=revision)' in code
