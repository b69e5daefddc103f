"""Softmax checkpoints are converted without loss, and restored."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

import hf_bidir
from hf_bidir import BidirBertConfig, convert_checkpoint
from hf_bidir.checkpoints.convert import restore_softmax
from hf_bidir.checkpoints.examples import example_inputs, outputs_of
from hf_bidir.checkpoints.reading import open_checkpoint
from tests.tiny_models import BART, IMAGES, SHAPE, TEXT

BERT = BertConfig(**SHAPE, **TEXT)
WHISPER = {name: value for name, value in BART.items() if name != "max_position_embeddings"}
STOCK = {
    "BertModel": SHAPE | TEXT,
    "BertForMultipleChoice": SHAPE | TEXT,
    "DeiTForImageClassificationWithTeacher": SHAPE | IMAGES,
    "CLIPModel": {"text_config": SHAPE | TEXT, "vision_config": SHAPE | IMAGES, "projection_dim": 16},
    "GPT2ForSequenceClassification": {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "BartForConditionalGeneration": TEXT | BART,
    "BartForSequenceClassification": TEXT | BART,
    "SwinForImageClassification": {
        "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
    },
    "VivitModel": SHAPE | {"image_size": 8, "num_frames": 2, "tubelet_size": [2, 4, 4]},
    "ASTModel": SHAPE | {"max_length": 32, "num_mel_bins": 16},
    "WhisperForConditionalGeneration": TEXT | WHISPER | {"max_source_positions": 8, "num_mel_bins": 16},
}  # fmt: skip


def saved(name, folder):
    torch.manual_seed(0)
    stock_class = getattr(transformers, name)
    stock_class(stock_class.config_class(**STOCK[name])).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", STOCK)
def test_every_stock_model_converts_without_loss_and_comes_back_the_same(name, tmp_path):
    source = saved(name, tmp_path / "stock")
    converted = convert_checkpoint(source, tmp_path / "signed")
    restored = restore_softmax(converted, tmp_path / "restored")
    stock = getattr(transformers, name).from_pretrained(source).eval()
    signed = getattr(hf_bidir, f"Bidir{name}").from_pretrained(converted).eval()
    assert signed.config.attn_negative_mass == 0
    inputs = example_inputs(stock)
    assert all(map(torch.equal, outputs_of(signed, inputs), outputs_of(stock, inputs)))
    before, after = (load_file(folder / "model.safetensors") for folder in (source, restored))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert top_fields(source) == top_fields(restored)


def top_fields(folder):
    """Of the config; loading may write types into those of parts."""
    fields = json.loads((folder / "config.json").read_text())
    return {name: value for name, value in fields.items() if not isinstance(value, dict)}


def test_half_precision_stays_half_and_a_pooler_that_the_checkpoint_lacks_stays_away(tmp_path):
    source = tmp_path / "stock"
    BertModel(BERT, add_pooling_layer=False).bfloat16().save_pretrained(source)
    restored = restore_softmax(convert_checkpoint(source, tmp_path / "signed"), tmp_path / "restored")
    before = load_file(source / "model.safetensors")
    for folder in (tmp_path / "signed", restored):
        after = load_file(folder / "model.safetensors")
        assert before.keys() == after.keys()
        assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    assert open_checkpoint(tmp_path / "signed").model().pooler is None


def timm_vit(**fields):
    """A small VisionTransformer of timm."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    small = {"img_size": 32, "depth": 2, "embed_dim": 48}
    return timm.create_model("vit_tiny_patch16_224", **small | fields)


@pytest.mark.parametrize("classes", [7, 0], ids=["with a classifier", "features only"])
def test_a_timm_vit_converts_to_1e_5(classes, tmp_path):
    model = timm_vit(num_classes=classes).eval()
    converted = convert_checkpoint(model, tmp_path / "signed")
    images = torch.randn(2, 3, 32, 32)
    if classes:
        got = hf_bidir.BidirViTForImageClassification.from_pretrained(converted).eval()(images).logits
        expected = model(images)
    else:
        got = hf_bidir.BidirViTModel.from_pretrained(converted).eval()(images).last_hidden_state
        expected = model.forward_features(images)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_a_timm_model_whose_outputs_would_change_is_not_written(tmp_path):
    model = timm_vit()
    model.norm.register_forward_hook(lambda module, args, output: 1.01 * output)  # no ViT has this
    with pytest.raises(ValueError, match="nothing saved"):
        convert_checkpoint(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert model.training


def test_a_timm_name_takes_the_weights_of_a_file(tmp_path):
    timm = pytest.importorskip("timm")
    name, weights = "timm:vit_tiny_patch16_224", tmp_path / "weights.safetensors"
    model = timm.create_model("vit_tiny_patch16_224")
    save_file(model.state_dict(), weights)
    converted = load_file(convert_checkpoint(name, tmp_path / "out", weights=weights) / "model.safetensors")
    assert torch.equal(converted["vit.embeddings.cls_token"], model.cls_token)
    weights.write_bytes(weights.read_bytes()[:100_000])
    with pytest.raises(ValueError, match=r"vit_tiny_patch16_224 .*weights.safetensors"):
        convert_checkpoint(name, tmp_path / "other", weights=weights)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda: timm_vit(pre_norm=True), "norm_pre"),
        (lambda: torch.nn.Linear(1, 1), "VisionTransformer, got Linear"),
        (lambda: "timm:vit_tiny_patch99", "cannot build vit_tiny_patch99"),
        (lambda: "timm:vit_tiny_patch16_224.no_such_tag", "no_such_tag"),
    ],
)
def test_a_timm_model_that_is_no_plain_vit_is_refused(source, message, tmp_path):
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(source(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (BERT, {"model_type": "robbert"}, "robbert"),
        (BERT, {"architectures": ["BertForSequenceClasification"]}, "is a BertForSequenceClasification"),
        (BidirBertConfig(), {"attn_format": 99}, "attn_format 99"),
        (BidirBertConfig(), {}, "is signed already, with the activation tanhmax"),
    ],
)
def test_what_the_config_tells_is_refused_before_weights_are_read(config, fields, message, tmp_path):
    config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(tmp_path, tmp_path.with_name("out"))


def test_a_checkpoint_that_lacks_weights_is_refused_and_nothing_is_written(tmp_path):
    source = saved("BertModel", tmp_path / "stock")
    weights = load_file(source / "model.safetensors")
    removed = next(name for name in weights if "query.weight" in name)
    del weights[removed]
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=rf"is incomplete: .*{removed}"):
        convert_checkpoint(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_kept_unless_overwriting_is_asked_for(tmp_path):
    source = saved("BertModel", tmp_path / "stock")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty"):
        convert_checkpoint(source, tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    convert_checkpoint(source, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "config.json").is_file()
    assert not (tmp_path / "out" / "notes.txt").exists()
    with pytest.raises(FileExistsError, match="without the source"):
        convert_checkpoint(source, tmp_path, overwrite=True)


@pytest.mark.parametrize("fields", [{"attn_negative_mass": 0.5}, {"attn_scope": "window", "attn_window": 1}])
def test_a_checkpoint_that_no_stock_model_equals_cannot_be_restored(fields, tmp_path):
    config = BidirBertConfig(**SHAPE, **TEXT, **{"attn_negative_mass": 0.0} | fields)
    hf_bidir.BidirBertModel(config).save_pretrained(tmp_path / "signed")
    with pytest.raises(ValueError, match="no stock model"):
        restore_softmax(tmp_path / "signed", tmp_path / "out")
