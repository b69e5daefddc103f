"""Softmax checkpoints are converted without loss, and restored."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertModel,
    FNetConfig,
    NystromformerConfig,
)

import hf_bidir
from hf_bidir import BidirBertConfig, convert_checkpoint
from hf_bidir.checkpoints.convert import restore_softmax
from hf_bidir.checkpoints.examples import example_inputs
from hf_bidir.checkpoints.reading import open_checkpoint
from tests.tiny_models import BART, SHAPE, TEXT
from tests.tiny_models import IMAGES as PICTURES

TEXTS, IMAGES = SHAPE | TEXT, SHAPE | PICTURES
BERT = BertConfig(**TEXTS)
STOCK = {
    "BertModel": TEXTS,
    "BertForSequenceClassification": TEXTS,
    "BertForMultipleChoice": TEXTS,
    "ElectraForPreTraining": TEXTS | {"embedding_size": 16},
    "ModernBertForMaskedLM": TEXTS,
    "ViTForImageClassification": IMAGES,
    "ViTMAEForPreTraining": IMAGES
    | {"decoder_hidden_size": 16, "decoder_intermediate_size": 16, "decoder_num_hidden_layers": 1}
    | {"decoder_num_attention_heads": 2},
    "DeiTForImageClassificationWithTeacher": IMAGES,
    "CLIPModel": {"text_config": TEXTS, "vision_config": IMAGES, "projection_dim": 16},
    "GPT2LMHeadModel": {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1},
    "LlamaForCausalLM": TEXTS | {"num_key_value_heads": 2},
    "BartForConditionalGeneration": TEXT | BART,
    "BartForSequenceClassification": TEXT | BART,
    "SwinForImageClassification": {
        "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
    },
}  # fmt: skip


def saved(name, folder):
    torch.manual_seed(0)
    stock = stock_class(name)
    stock(stock.config_class(**STOCK[name])).save_pretrained(folder)
    return folder


def stock_class(name):
    return getattr(transformers, name)


def first_output(model):
    """Outputs of random input; texts without padding, where a fully masked query may have any output."""
    inputs = example_inputs(model)
    with torch.no_grad():
        output = model.eval()(**inputs)[0]
    keep = inputs.get("attention_mask")
    return output if keep is None or output.shape[:2] != keep.shape else output[keep.bool()]


@pytest.mark.parametrize("name", STOCK)
def test_every_stock_model_converts_without_loss_and_comes_back_the_same(name, tmp_path):
    source = saved(name, tmp_path / "stock")
    converted = convert_checkpoint(source, tmp_path / "signed")
    restored = restore_softmax(converted, tmp_path / "restored")
    signed = getattr(hf_bidir, f"Bidir{name}").from_pretrained(converted)
    assert signed.config.attn_negative_mass == 0
    if name != "ViTMAEForPreTraining":  # which leaves out patches at random
        expected = first_output(stock_class(name).from_pretrained(source))
        torch.testing.assert_close(first_output(signed), expected, rtol=1e-6, atol=1e-6)
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
    torch.manual_seed(0)
    BertModel(BERT, add_pooling_layer=False).bfloat16().save_pretrained(source)
    restored = restore_softmax(convert_checkpoint(source, tmp_path / "signed"), tmp_path / "restored")
    before = load_file(source / "model.safetensors")
    for folder in (tmp_path / "signed", restored):
        after = load_file(folder / "model.safetensors")
        assert before.keys() == after.keys()
        assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    assert open_checkpoint(tmp_path / "signed").model().pooler is None


@pytest.mark.parametrize("classes", [7, 0], ids=["with a classifier", "features only"])
def test_a_timm_vit_converts_to_1e_5(classes, tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=classes).eval()
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
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32)
    model.norm.register_forward_hook(lambda module, args, output: 1.01 * output)  # no ViT has this
    with pytest.raises(ValueError, match=r"outputs differ from the source's by .*; nothing saved"):
        convert_checkpoint(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert model.training


def test_a_timm_name_takes_the_weights_of_a_file(tmp_path):
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    converted = convert_checkpoint(
        "timm:vit_tiny_patch16_224", tmp_path / "out", weights=tmp_path / "weights.safetensors"
    )
    got = hf_bidir.BidirViTForImageClassification.from_pretrained(converted)
    assert torch.equal(got.vit.embeddings.cls_token, model.cls_token)
    (tmp_path / "weights.safetensors").write_bytes((tmp_path / "weights.safetensors").read_bytes()[:100_000])
    with pytest.raises(ValueError, match=r"timm cannot build vit_tiny_patch16_224 with .*weights.safetensors: [^\n]+$"):
        convert_checkpoint("timm:vit_tiny_patch16_224", tmp_path / "other", weights=tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("vit_base_patch16_clip_224", "norm_pre"),
        ("vit_tiny_patch99", "timm has no model"),
        ("vit_tiny_patch16_224.no_such_tag", "timm cannot build .*no_such_tag"),
        ("resnet18", "expected a timm VisionTransformer, got ResNet"),
    ],
)
def test_a_timm_model_that_is_no_plain_vit_is_refused(model, message, tmp_path):
    timm = pytest.importorskip("timm")
    instance = model in ("vit_base_patch16_clip_224", "resnet18")
    source = timm.create_model(model) if instance else f"timm:{model}"
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def config_alone(folder, config, **fields):
    """A folder whose weights cannot be read, so that what is refused is refused by the config."""
    config.save_pretrained(folder)
    saved_fields = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(saved_fields))
    return folder


REFUSED = {
    "a model type that nobody knows": (BERT, {"model_type": "robbert"}, {}, "robbert"),
    "a class that there is not": (
        BERT, {"architectures": ["BertForSequenceClasification"]}, {},
        "is a BertForSequenceClasification",
    ),
    "no layers": (
        FNetConfig(), {"architectures": ["FNetModel"]}, {},
        "FNetModel has no layer that computes softmax attention",
    ),
    "attention that cannot be signed": (
        NystromformerConfig(**SHAPE), {"architectures": ["NystromformerModel"]}, {},
        "NystromformerModel has attention that cannot be signed: NystromformerSelfAttention",
    ),
    "a list of another length": (BERT, {}, {"negative_mass": [0.1] * 3}, "a list of 2 .one per signed layer."),
    "another number of heads": (
        BERT, {}, {"negative_mass": [0.1, [0.1] * 5]}, "attn_negative_mass of layer 1 needs 4 numbers",
    ),
    "an activation that nobody knows": (BERT, {}, {"attn_activation": "tanmax"}, "tanmax"),
    "a newer version of the package": (
        BidirBertConfig(**TEXTS), {"attn_format": 99}, {}, "saved by a newer hf_bidir .attn_format 99",
    ),
    "a signed checkpoint": (BidirBertConfig(**TEXTS), {}, {}, "is signed already, with the activation tanhmax"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_config_tells_is_refused_before_weights_are_read(what, tmp_path):
    config, fields, options, message = REFUSED[what]
    source = config_alone(tmp_path / "source", config, **fields)
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_lacks_weights_is_refused_and_nothing_is_written(tmp_path):
    source = saved("BertModel", tmp_path / "stock")
    weights = load_file(source / "model.safetensors")
    removed = next(name for name in weights if "query.weight" in name)
    del weights[removed]
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"is incomplete: it lacks the weights .*query"):
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


def test_a_checkpoint_with_negative_mass_or_with_a_window_cannot_be_restored(tmp_path):
    converted = convert_checkpoint(saved("BertModel", tmp_path / "stock"), tmp_path / "signed", negative_mass=0.5)
    with pytest.raises(ValueError, match=r"computes tanhmax with attn_negative_mass=0\.5"):
        restore_softmax(converted, tmp_path / "out")
    fields = {"attn_scope": "window", "attn_window": 1, "attn_negative_mass": 0.0}
    hf_bidir.BidirBertModel(BidirBertConfig(**TEXTS, **fields)).save_pretrained(tmp_path / "window")
    with pytest.raises(ValueError, match="attn_window=1"):
        restore_softmax(tmp_path / "window", tmp_path / "out")
