"""Signed models of every kind saved and loaded: by their class, by Auto classes, without hf_bidir, as parts."""

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

import hf_bidir
from hf_bidir import BidirBertForSequenceClassification, signed
from hf_bidir.hub.isolated import CHILD
from tests.processes import run_python
from tests.tiny_models import FAMILIES, SHAPE, TEXT, inputs_of, logits_of, random_model, signed_model, stock_model

every_family = pytest.mark.parametrize("family", FAMILIES)


@every_family
def test_a_saved_model_reloads_with_the_same_tensors_and_outputs(family, tmp_path):
    model = signed_model(family, 0.7)
    model.save_pretrained(tmp_path)
    loaded, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(logits_of(loaded.eval(), inputs_of(family)), logits_of(model, inputs_of(family)))


@every_family
def test_a_stock_checkpoint_loads_with_nothing_missing_and_its_keys_are_kept(family, tmp_path):
    stock, inputs = stock_model(family), inputs_of(family)
    stock.save_pretrained(tmp_path / "stock")
    signed_class = getattr(hf_bidir, f"Bidir{type(stock).__name__}")
    model, report = signed_class.from_pretrained(tmp_path / "stock", output_loading_info=True)
    assert not report["missing_keys"]
    assert (model.config.attn_activation, model.config.attn_negative_mass) == ("tanhmax", 1.0)
    model.config.attn_negative_mass = 0.0
    torch.testing.assert_close(logits_of(model.eval(), inputs), logits_of(stock, inputs), rtol=1e-5, atol=1e-5)
    type(stock).from_pretrained(tmp_path / "stock").save_pretrained(tmp_path / "again")
    model.save_pretrained(tmp_path / "signed")
    assert keys_of(tmp_path / "signed") == keys_of(tmp_path / "again")


def keys_of(folder):
    return load_file(folder / "model.safetensors").keys()


def deberta():
    fields = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    return signed(random_model("DebertaV2Model", **SHAPE | TEXT | fields))


def windowed():
    torch.manual_seed(0)
    config = hf_bidir.BidirBertConfig(**SHAPE | TEXT, attn_scope="window", attn_window=1)
    return BidirBertForSequenceClassification(config).eval()


ALONE = {
    "vit": (lambda: signed_model("vit"), "vit", "AutoModelForImageClassification"),
    "bart": (lambda: signed_model("bart"), "bart", "AutoModelForSeq2SeqLM"),
    "the encoder below a head": (lambda: signed_model("bert").base_model, "bert", "AutoModel"),
    "a window": (windowed, "bert", "AutoModelForSequenceClassification"),
    "attention of its own": (deberta, "bert", "AutoModel"),
}


BACKENDS_ALONE = """
import transformers
for name in ("fused", "flash_attention_2"):
    try:
        transformers.AutoModel.from_pretrained(FOLDER, trust_remote_code=True, attn_implementation=name)
    except ValueError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """By name, the logits of each saved model, in one process that has no hf_bidir; and what other backends say there,
    with the sizes of the files of code that a model carries."""
    folder, child = tmp_path_factory.mktemp("alone"), ["import runpy", f"child = runpy.run_path({str(CHILD)!r})"]
    for name, (make, inputs, auto) in ALONE.items():
        make().save_pretrained(folder / name)
        save_file(inputs_of(inputs), folder / f"{name}.inputs")
        files = [str(folder / name), auto, str(folder / f"{name}.inputs"), str(folder / f"{name}.outputs")]
        child.append(f"child['main'](*{files})")
    child.append(BACKENDS_ALONE.replace("FOLDER", repr(str(folder / "the encoder below a head"))))
    environment = {"HF_MODULES_CACHE": str(folder / "modules"), "HF_HUB_OFFLINE": "1"}
    errors = run_python("\n".join(child), isolated=True, cwd=folder, **environment)
    outputs = {name: main_output(load_file(folder / f"{name}.outputs")) for name in ALONE}
    return outputs, errors, [file.stat().st_size for file in (folder / "vit").glob("*.py")]


def main_output(outputs):
    return outputs["logits"] if "logits" in outputs else outputs["last_hidden_state"]


@pytest.mark.parametrize("name", ALONE)
def test_a_saved_model_reloads_in_a_process_that_has_no_hf_bidir(elsewhere, name):
    outputs, *_ = elsewhere
    make, inputs, _ = ALONE[name]
    # there the formula itself, here blocks of scores: each is about 5e-5 from float64
    torch.testing.assert_close(outputs[name], main_output(make()(**inputs_of(inputs))), rtol=0, atol=5e-5)


def test_a_folder_has_little_code_and_other_backends_are_an_error_there_that_says_what_to_install(elsewhere):
    _, errors, sizes = elsewhere
    assert len(sizes) <= 10
    assert sum(sizes) <= 140_000
    assert errors.count("pip install hf-bidir") == 2


def test_a_part_of_a_model_takes_its_attention_from_the_whole(tmp_path):
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40}
    config = transformers.CLIPConfig(text_config=text | {"vocab_size": 60}, vision_config=text | {"image_size": 8})
    config.vision_config.patch_size = 4
    signed(transformers.CLIPModel(config), 0.25).save_pretrained(tmp_path)
    part = hf_bidir.BidirCLIPVisionModel.from_pretrained(tmp_path)
    assert part.config.attn_negative_mass == 0.25


def test_a_class_that_fsdp_derives_in_torch_is_saved_under_the_name_of_the_signed_class(tmp_path):
    model = signed_model("bert")
    made = type(model)
    model.__class__ = type(f"FSDP{made.__name__}", (made,), {"__module__": "torch.distributed.fsdp"})
    model.save_pretrained(tmp_path)
    assert type(AutoModelForSequenceClassification.from_pretrained(tmp_path)) is made
    assert AutoConfig.from_pretrained(tmp_path).architectures == [made.__name__]


def test_a_model_from_which_layers_were_removed_is_saved_with_the_masses_of_those_left(tmp_path):
    model = signed(stock_model("bert", num_hidden_layers=3), [0.0, 0.5, [1.0, 0.2, 0.0, 0.7]])
    model.bert.encoder.layer = model.bert.encoder.layer[::2]
    model.config.num_hidden_layers = 2
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.config.attn_negative_mass == [0.0, [1.0, 0.2, 0.0, 0.7]]
    assert torch.equal(logits_of(loaded, inputs_of("bert")), logits_of(model, inputs_of("bert")))


def test_a_part_with_a_config_of_its_own_is_not_saved_as_softmax(tmp_path):
    model = signed_model("t5")
    with pytest.raises(ValueError, match=r"would be loaded as softmax\. Save the whole model"):
        model.encoder.save_pretrained(tmp_path)


def test_a_model_type_with_the_classes_of_another_keeps_its_own_checkpoint_keys(tmp_path):
    if not hasattr(transformers, "ExaoneConfig"):
        pytest.skip("this version of transformers has no type of Llama's classes with keys of its own")
    stock = transformers.LlamaForCausalLM(transformers.ExaoneConfig(**SHAPE | TEXT, num_key_value_heads=2)).eval()
    stock.save_pretrained(tmp_path / "stock")
    expected = logits_of(stock, inputs_of("llama"))
    signed(stock, 0.0).save_pretrained(tmp_path / "signed")
    assert keys_of(tmp_path / "signed") == keys_of(tmp_path / "stock")
    for model in (
        AutoModelForCausalLM.from_pretrained(tmp_path / "signed"),
        hf_bidir.BidirLlamaForCausalLM.from_pretrained(tmp_path / "stock", attn_negative_mass=0.0),
    ):
        assert torch.equal(logits_of(model.eval(), inputs_of("llama")), expected)
