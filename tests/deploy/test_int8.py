"""Checkpoints with 8-bit weights load like others, and are refused where full precision is needed."""

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForSequenceClassification

import hf_bidir
from hf_bidir import convert_checkpoint, signed
from hf_bidir.checkpoints.convert import restore_softmax
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.deploy.graph import export_checkpoint
from hf_bidir.deploy.int8 import quantise_checkpoint
from tests.tiny_models import inputs_of, stock_model, word_tokenizer
from training import distill, text_classification

CARD = "---\nlicense: mit\nbase_model: alice/tiny\nbase_model_relation: finetune\n---\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A signed BERT with a card, and its copy with 8-bit weights."""
    folder = tmp_path_factory.mktemp("int8")
    for part in (signed(stock_model("bert", num_labels=3)), word_tokenizer()):
        part.save_pretrained(folder / "full")
    (folder / "full/README.md").write_text(CARD)
    quantise_checkpoint(folder / "full", folder / "int8")
    return folder / "full", folder / "int8"


def test_every_linear_layer_is_saved_in_8_bits(folders):
    with safe_open(folders[1] / "model.safetensors", "pt") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (no mapping)
    for name, layer in open_checkpoint(folders[0]).model().named_modules():
        if isinstance(layer, nn.Linear):
            assert "I8" in {kind for key, kind in kinds.items() if key.startswith(name)}, name
    assert {kind for name, kind in kinds.items() if "embeddings" in name} == {"F32"}


def test_a_saved_copy_computes_nearly_what_the_model_computes_however_it_is_loaded(folders):
    by_auto_class = AutoModelForSequenceClassification.from_pretrained(folders[1])
    assert isinstance(by_auto_class, hf_bidir.BidirBertForSequenceClassification)
    models = (*(open_checkpoint(folder).model() for folder in folders), by_auto_class)
    with torch.no_grad():
        expected, rounded, loaded = (model(**inputs_of("bert")).logits for model in models)
    assert 0 < (rounded - expected).abs().max() < 0.1 * expected.abs().max()
    torch.testing.assert_close(loaded, rounded)


def test_a_copy_keeps_the_licence_and_the_base_of_its_source(folders):
    data = ModelCard.load(folders[1] / "README.md").data
    assert (data.license, data.base_model, data["base_model_relation"]) == ("mit", "alice/tiny", "quantized")


@pytest.mark.parametrize("write", [convert_checkpoint, restore_softmax, quantise_checkpoint, export_checkpoint])
def test_a_copy_is_neither_converted_nor_exported_nor_quantised_again(folders, write, tmp_path):
    with pytest.raises(ValueError, match=r"converted|exported|quantised again"):
        write(folders[1], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("script", [text_classification, distill])
def test_a_copy_is_not_trained(folders, script, tmp_path):
    (tmp_path / "texts.csv").write_text("text,label\n" + "a film,0\nno film,1\n" * 20)
    options = {"model_name_or_path": folders[1], "train_file": tmp_path / "texts.csv", "output_dir": tmp_path / "out"}
    with pytest.raises(ValueError, match=r"int8.*trained"):
        script.main(options)
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_layer_that_can_have_8_bits_is_refused(tmp_path):
    signed(stock_model("gpt2")).save_pretrained(tmp_path / "full")
    with pytest.raises(ValueError, match="BidirGPT2LMHeadModel"):
        quantise_checkpoint(tmp_path / "full", tmp_path / "int8")
    assert not (tmp_path / "int8").exists()
