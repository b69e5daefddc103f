"""Softmax checkpoints become signed ones without loss, and come back."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    DeiTConfig,
    DeiTForImageClassification,
    DeiTModel,
    RobertaConfig,
    RobertaModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

import hf_bidir
from hf_bidir import BidirBertConfig, BidirBertModel, convert_checkpoint
from hf_bidir.convert import restore_softmax
from hf_bidir.hub.isolated import isolated_forward

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BERT = BertConfig(**SMALL, vocab_size=60, initializer_range=0.3)
IMAGES = {**SMALL, "image_size": 16, "patch_size": 4, "initializer_range": 0.3}
STOCK = {
    "BertModel": (BertModel, BERT),
    "BertForSequenceClassification": (BertForSequenceClassification, BERT),
    "BertForMaskedLM": (BertForMaskedLM, BERT),
    "BertForTokenClassification": (BertForTokenClassification, BERT),
    "BertForQuestionAnswering": (BertForQuestionAnswering, BERT),
    "BertForMultipleChoice": (BertForMultipleChoice, BERT),
    "ViTModel": (ViTModel, ViTConfig(**IMAGES)),
    "ViTForImageClassification": (ViTForImageClassification, ViTConfig(**IMAGES)),
    "DeiTModel": (DeiTModel, DeiTConfig(**IMAGES)),
    "DeiTForImageClassification": (DeiTForImageClassification, DeiTConfig(**IMAGES)),
}


def saved(name, folder):
    stock_class, config = STOCK[name]
    torch.manual_seed(0)
    stock_class(config).save_pretrained(folder)
    return folder


def inputs_of(config):
    generator = torch.Generator().manual_seed(1)
    if hasattr(config, "image_size"):
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    return {"input_ids": torch.randint(60, (2, 7), generator=generator)}


def first_output(model):
    inputs = inputs_of(model.config)
    if "MultipleChoice" in type(model).__name__:
        inputs = {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}
    with torch.no_grad():
        return model.eval()(**inputs)[0]


@pytest.mark.parametrize("name", STOCK)
def test_every_stock_head_converts_without_loss_and_comes_back_the_same(name, tmp_path):
    source = saved(name, tmp_path / "stock")
    converted = convert_checkpoint(source, tmp_path / "signed")
    restored = restore_softmax(converted, tmp_path / "restored")
    expected = first_output(STOCK[name][0].from_pretrained(source))
    signed = getattr(hf_bidir, f"Bidir{name}").from_pretrained(converted)
    assert signed.config.attn_negative_mass == 0
    torch.testing.assert_close(first_output(signed), expected, rtol=0, atol=1e-6)
    before, after = (load_file(folder / "model.safetensors") for folder in (source, restored))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_negative_mass_changes_the_outputs(tmp_path):
    source = saved("BertForSequenceClassification", tmp_path / "stock")
    converted = convert_checkpoint(source, tmp_path / "signed", negative_mass=1.0)
    signed = hf_bidir.BidirBertForSequenceClassification.from_pretrained(converted)
    assert signed.config.attn_negative_mass == 1.0
    difference = first_output(signed) - first_output(BertForSequenceClassification.from_pretrained(source))
    assert difference.abs().max() > 1e-3


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "DeiTForImageClassification"])
def test_a_converted_checkpoint_loads_where_hf_bidir_is_not_installed(name, tmp_path):
    source = saved(name, tmp_path / "stock")
    converted = convert_checkpoint(source, tmp_path / "signed")
    auto_class = f"AutoModelFor{name.split('For')[1]}"
    stock = STOCK[name][0].from_pretrained(source)
    logits = isolated_forward(converted, auto_class, inputs_of(stock.config))["logits"]
    torch.testing.assert_close(logits, first_output(stock), rtol=0, atol=1e-6)


def test_the_tokenizer_comes_along(tmp_path):
    from transformers import BertTokenizerFast

    source = saved("BertModel", tmp_path / "stock")
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "film"]))
    BertTokenizerFast(str(vocabulary)).save_pretrained(source)
    converted = convert_checkpoint(source, tmp_path / "signed")
    tokenize = AutoTokenizer.from_pretrained(converted)
    assert tokenize("good film")["input_ids"] == AutoTokenizer.from_pretrained(source)("good film")["input_ids"]


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
    with pytest.raises(ValueError, match=r"outputs differ from the source's by .*; nothing written"):
        convert_checkpoint(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert model.training


def test_a_timm_name_takes_the_weights_of_a_file(tmp_path):
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    model = timm.create_model("vit_tiny_patch16_224")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    converted = convert_checkpoint(
        "timm:vit_tiny_patch16_224", tmp_path / "out", weights=tmp_path / "weights.safetensors"
    )
    got = hf_bidir.BidirViTForImageClassification.from_pretrained(converted)
    assert torch.equal(got.vit.embeddings.cls_token, model.cls_token)


@pytest.mark.parametrize("damage", ["half a file", "of a wider model"])
def test_timm_weights_that_do_not_fit_are_one_clear_error(damage, tmp_path):
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    weights = tmp_path / "weights.safetensors"
    save_file(timm.create_model("vit_tiny_patch16_224").state_dict(), weights)
    if damage == "half a file":
        weights.write_bytes(weights.read_bytes()[:100_000])
    name = "vit_tiny_patch16_224" if damage == "half a file" else "vit_small_patch16_224"
    with pytest.raises(ValueError, match=f"timm cannot build {name} with .*weights.safetensors: [^\n]+$"):
        convert_checkpoint(f"timm:{name}", tmp_path / "out", weights=weights)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("vit_base_patch16_clip_224", "a norm before the blocks"),
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


def test_another_family_is_refused_by_name(tmp_path):
    RobertaModel(RobertaConfig(**SMALL, vocab_size=60)).save_pretrained(tmp_path / "roberta")
    with pytest.raises(ValueError, match=r"is a roberta checkpoint; supported are bert, vit, deit"):
        convert_checkpoint(tmp_path / "roberta", tmp_path / "out")


def test_a_head_without_a_signed_counterpart_is_refused(tmp_path):
    BertForNextSentencePrediction(BERT).save_pretrained(tmp_path / "nsp")
    with pytest.raises(ValueError, match=r"BertForNextSentencePrediction has no signed counterpart; there are Bidir"):
        convert_checkpoint(tmp_path / "nsp", tmp_path / "out")


def test_a_checkpoint_that_is_signed_already_is_refused(tmp_path):
    BidirBertModel(BidirBertConfig(**SMALL, vocab_size=60)).save_pretrained(tmp_path / "signed")
    with pytest.raises(ValueError, match="is signed already"):
        convert_checkpoint(tmp_path / "signed", tmp_path / "out")


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no config.json"):
        convert_checkpoint(tmp_path, tmp_path / "out")


def test_a_checkpoint_that_lacks_weights_is_refused_and_nothing_is_written(tmp_path):
    from safetensors.torch import save_file

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


def test_a_checkpoint_with_negative_mass_has_no_way_back(tmp_path):
    converted = convert_checkpoint(saved("BertModel", tmp_path / "stock"), tmp_path / "signed", negative_mass=0.5)
    with pytest.raises(ValueError, match=r"attn_negative_mass=0\.5; only a checkpoint with attn_negative_mass=0"):
        restore_softmax(converted, tmp_path / "out")
