"""Signed models of every kind saved and loaded: by their class, by Auto classes, without hf_bidir, as parts."""

import zipfile
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

import hf_bidir
from hf_bidir import (
    BidirBertForSequenceClassification,
    signed,
)
from hf_bidir.hub.isolated import CHILD
from tests.processes import run_python
from tests.tiny_models import FAMILIES, SHAPE, TEXT, inputs_of, logits_of, random_model, stock_model

every_family = pytest.mark.parametrize("family", FAMILIES)


def signed_model(family, mass=1.0, **fields):
    return signed(stock_model(family, **fields), mass)


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
    stock = stock_model(family)
    stock.save_pretrained(tmp_path / "stock")
    signed_class = getattr(hf_bidir, f"Bidir{type(stock).__name__}")
    model, report = signed_class.from_pretrained(tmp_path / "stock", output_loading_info=True)
    assert not report["missing_keys"]
    assert (model.config.attn_activation, model.config.attn_negative_mass) == ("tanhmax", 1.0)
    model.config.attn_negative_mass = 0.0
    torch.testing.assert_close(
        logits_of(model.eval(), inputs_of(family)), logits_of(stock, inputs_of(family)), rtol=1e-5, atol=1e-5
    )
    again = {"stock again": type(stock).from_pretrained(tmp_path / "stock"), "signed": model}
    keys = []
    for name, loaded in again.items():
        loaded.save_pretrained(tmp_path / name)
        keys.append(set(safe_open(tmp_path / name / "model.safetensors", "pt").keys()))
    assert keys[0] == keys[1]


ALONE = {
    "vit": (lambda: signed_model("vit"), "vit", "AutoModelForImageClassification"),
    "bart": (lambda: signed_model("bart"), "bart", "AutoModelForSeq2SeqLM"),
    "the encoder below a head": (lambda: signed_model("bert").base_model, "bert", "AutoModel"),
    "the decoder below a head": (lambda: signed_model("llama", 0.3).model, "llama", "AutoModel"),
    "the model inside an encoder-decoder": (lambda: signed_model("bart").base_model, "bart", "AutoModel"),
    "a window": (lambda: windowed("bert"), "bert", "AutoModelForSequenceClassification"),
    "attention of its own": (lambda: deberta(), "bert", "AutoModel"),
}


def deberta():
    fields = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    return signed(random_model("DebertaV2Model", **SHAPE | TEXT | fields))


def windowed(family):
    config = signed_model(family).config
    config.attn_scope, config.attn_window = "window", 1
    torch.manual_seed(0)
    return BidirBertForSequenceClassification(config).eval()


OLD = Path(__file__).parents[1] / "fixtures/bert_of_version_0.1.zip"  # saved while λ could be learned
OLD_INPUTS, OLD_LOGITS = {"input_ids": torch.arange(3, 13)[None]}, torch.tensor([[0.3167, -0.2642]])  # of that version


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A checkpoint of an earlier version."""
    folder = tmp_path_factory.mktemp("old")
    with zipfile.ZipFile(OLD) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory, old):
    """By name, the logits of each saved model, and of an old one, in one process that has no hf_bidir."""
    folder, child = tmp_path_factory.mktemp("alone"), ["import runpy", f"child = runpy.run_path({str(CHILD)!r})"]
    models = [(name, folder / name, inputs_of(inputs), auto) for name, (_, inputs, auto) in ALONE.items()]
    for name, (make, _, _) in ALONE.items():
        make().save_pretrained(folder / name)
    for name, source, inputs, auto in [*models, ("old", old, OLD_INPUTS, "AutoModelForSequenceClassification")]:
        save_file(inputs, folder / f"{name}.inputs")
        files = [str(source), auto, str(folder / f"{name}.inputs"), str(folder / f"{name}.outputs")]
        child.append(f"child['main'](*{files})")
    environment = {"HF_MODULES_CACHE": str(folder / "modules"), "HF_HUB_OFFLINE": "1"}
    run_python("\n".join(child), isolated=True, cwd=folder, **environment)
    return {name: main_output(load_file(folder / f"{name}.outputs")) for name in (*ALONE, "old")}


def main_output(outputs):
    return outputs["logits"] if "logits" in outputs else outputs["last_hidden_state"]


@pytest.mark.parametrize("name", ALONE)
def test_a_saved_model_reloads_in_a_process_that_has_no_hf_bidir(elsewhere, name):
    make, inputs, _ = ALONE[name]
    # there the formula itself, here blocks of scores: each is about 5e-5 from float64
    torch.testing.assert_close(elsewhere[name], main_output(make()(**inputs_of(inputs))), rtol=0, atol=5e-5)


def test_a_checkpoint_of_an_earlier_version_loads_with_the_package_and_with_its_own_code_alone(old, elsewhere):
    model = AutoModelForSequenceClassification.from_pretrained(old).eval()
    assert type(model) is BidirBertForSequenceClassification
    for logits in (model(**OLD_INPUTS).logits, elsewhere["old"]):
        torch.testing.assert_close(logits, OLD_LOGITS, rtol=0, atol=1e-4)


def test_the_auto_factories_make_the_head_of_a_config():
    config = AutoConfig.for_model("bidir_distilbert", vocab_size=60, dim=32, n_layers=1, n_heads=4, hidden_dim=40)
    assert type(AutoModelForMaskedLM.from_config(config)).__name__ == "BidirDistilBertForMaskedLM"
    config = hf_bidir.BidirDinov2Config(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    assert isinstance(AutoModelForImageClassification.from_config(config), hf_bidir.BidirDinov2ForImageClassification)


def test_a_part_of_a_model_takes_its_attention_from_the_whole(tmp_path):
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40}
    config = transformers.CLIPConfig(text_config=text | {"vocab_size": 60}, vision_config=text | {"image_size": 8})
    config.vision_config.patch_size = 4
    signed(transformers.CLIPModel(config), 0.25).save_pretrained(tmp_path)
    part = hf_bidir.BidirCLIPVisionModel.from_pretrained(tmp_path)
    assert part.config.attn_negative_mass == 0.25


def test_a_part_with_a_config_of_its_own_is_not_saved_as_softmax(tmp_path):
    model = signed_model("t5")
    with pytest.raises(ValueError, match=r"would be loaded as softmax\. Save the whole model"):
        model.encoder.save_pretrained(tmp_path)


def test_a_part_is_saved_as_the_class_that_it_is_and_computes_the_same_from_its_folder(tmp_path):
    whole = signed_model("bert", [0.2, 0.7])
    whole.base_model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path).eval()
    assert (type(loaded).__name__, loaded.config.attn_negative_mass) == ("BidirBertModel", [0.2, 0.7])
    states = [model(**inputs_of("bert")).last_hidden_state for model in (whole.base_model, loaded)]
    assert torch.equal(*states)


def test_a_model_from_which_layers_were_removed_is_saved_with_the_masses_of_those_left(tmp_path):
    model = hf_bidir.signed(stock_model("bert", num_hidden_layers=3), [0.0, 0.5, [1.0, 0.2, 0.0, 0.7]])
    model.bert.encoder.layer = model.bert.encoder.layer[::2]
    model.config.num_hidden_layers = 2
    model.save_pretrained(tmp_path)
    loaded = BidirBertForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.config.attn_negative_mass == [0.0, [1.0, 0.2, 0.0, 0.7]]
    assert torch.equal(loaded(**inputs_of("bert")).logits, model(**inputs_of("bert")).logits)


def test_a_model_type_with_the_classes_of_another_keeps_its_own_checkpoint_keys(tmp_path):
    if not hasattr(transformers, "ExaoneConfig"):
        pytest.skip("this version of transformers has no type of Llama's classes with keys of its own")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.ExaoneConfig(vocab_size=60, eos_token_id=2, num_key_value_heads=2, **shape)
    stock = transformers.LlamaForCausalLM(config).eval()
    stock.save_pretrained(tmp_path / "stock")
    expected = logits_of(stock, inputs_of("llama"))
    signed(stock, 0.0).save_pretrained(tmp_path / "signed")
    keys = [set(load_file(tmp_path / name / "model.safetensors")) for name in ("stock", "signed")]
    assert keys[0] == keys[1]
    for model in (
        AutoModelForCausalLM.from_pretrained(tmp_path / "signed"),
        hf_bidir.BidirLlamaForCausalLM.from_pretrained(tmp_path / "stock", attn_negative_mass=0.0),
    ):
        assert torch.equal(logits_of(model.eval(), inputs_of("llama")), expected)


ALONE_WITHOUT_KERNELS = """
import sys
sys.modules["hf_bidir"] = None
from pathlib import Path
from transformers import AutoModelForSequenceClassification
folder = Path(sys.argv[1])
load = AutoModelForSequenceClassification.from_pretrained
print(len(list(folder.glob("*.py"))), sum(file.stat().st_size for file in folder.glob("*.py")))
model = load(folder, trust_remote_code=True)
for name in ("fused", "flash_attention_2"):
    try:
        load(folder, trust_remote_code=True, attn_implementation=name)
    except ValueError as error:
        print(error)
"""


def test_a_folder_has_little_code_and_without_the_package_other_backends_are_an_error_that_says_what_to_install(
    tmp_path,
):
    signed_model("bert").save_pretrained(tmp_path)
    environment = {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    sizes, *errors = run_python(ALONE_WITHOUT_KERNELS, tmp_path, cwd=tmp_path, **environment).splitlines()
    files, size = map(int, sizes.split())
    assert files <= 10
    assert size <= 140_000
    assert len(errors) == 2
    assert all("pip install hf-bidir" in error for error in errors)
