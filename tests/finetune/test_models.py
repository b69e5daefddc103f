from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    CLIPConfig,
    CLIPForImageClassification,
)

import hf_bidir
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import ModelArguments
from hf_bidir.finetune.models import able_to_pad, build_model, check_options, checkpoint_config, scratch_config
from tests.training.checkpoints_of_others import checkpoint_of

CLASSIFY = "AutoModelForSequenceClassification"
SHAPE = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
QUERY = "encoder.layer.0.attention.self.query.weight"
OTHER_SHAPE = {QUERY: torch.zeros(4, 8)}


@pytest.fixture
def stock(tmp_path):
    """A saved stock encoder, without any head."""
    BertModel(BertConfig(**SHAPE)).save_pretrained(tmp_path)
    return tmp_path


def rewrite_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def build(folder, names=("no", "yes"), auto=CLASSIFY, **options):
    arguments = ModelArguments(model_name_or_path=str(folder), **options)
    return build_model(auto, arguments, checkpoint_config(auto, arguments, list(names)))


@pytest.mark.parametrize("family", ["Roberta", "ModernBert", "GPT2"])
def test_any_stock_encoder_starts_at_negative_mass_0_with_its_own_weights(family, tmp_path, capfd, caplog):
    stock = AutoModel.from_pretrained(checkpoint_of(family, tmp_path)).eval()
    model = build(tmp_path, names=("bad", "fair", "good")).eval()
    assert isinstance(model, getattr(hf_bidir, f"Bidir{family}ForSequenceClassification"))
    assert (model.config.attn_negative_mass, model.config.num_labels) == (0.0, 3)
    ids = torch.tensor([[3, 4, 5, 6]])
    expected = stock(ids).last_hidden_state
    torch.testing.assert_close(model.base_model(ids).last_hidden_state, expected, rtol=0, atol=1e-6)
    assert f"{tmp_path} has no weights of this shape for " in caplog.text
    assert "REPORT" not in capfd.readouterr().err


def test_a_classifier_around_a_part_of_a_model_keeps_that_part(tmp_path):
    images = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    vision = images | {"image_size": 8, "patch_size": 4}
    stock = CLIPForImageClassification(CLIPConfig(text_config=SHAPE, vision_config=vision))
    stock.save_pretrained(tmp_path)
    model = build(tmp_path, names=("bad", "fair", "good"), auto="AutoModelForImageClassification")
    assert model.classifier.out_features == 3
    name = "embeddings.patch_embedding.weight"
    assert torch.equal(model.vision_model.state_dict()[name], stock.vision_model.state_dict()[name])
    lost = next(key for key in load_file(tmp_path / "model.safetensors") if key.endswith("fc1.weight"))
    rewrite_weights(tmp_path, lambda weights: weights.pop(lost))
    with pytest.raises(InputError, match=r"1 are missing or of another shape: .*fc1\.weight"):
        build(tmp_path, auto="AutoModelForImageClassification")


def test_labels_and_head_of_an_earlier_task_are_replaced(tmp_path):
    config = BertConfig(**SHAPE, problem_type="multi_label_classification", num_labels=5)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    model = build(tmp_path)
    assert model(torch.tensor([[3, 4]]), labels=torch.tensor([1])).loss.isfinite()
    assert model.config.id2label == {0: "no", 1: "yes"}


def test_an_encoder_without_a_head_or_a_pooler_is_a_start(stock):
    saved = load_file(stock / "model.safetensors")[QUERY]
    rewrite_weights(stock, lambda weights: [weights.pop(f"pooler.dense.{name}") for name in ("weight", "bias")])
    assert torch.equal(build(stock).bert.state_dict()[QUERY], saved)


@pytest.mark.parametrize("change", [lambda weights: weights.pop(QUERY), lambda weights: weights.update(OTHER_SHAPE)])
def test_a_checkpoint_whose_encoder_would_stay_random_is_one_clear_error(stock, change):
    rewrite_weights(stock, change)
    with pytest.raises(InputError, match=rf"not a usable checkpoint.*1 are missing or of another shape: bert\.{QUERY}"):
        build(stock)


def test_a_weight_file_that_is_cut_is_one_clear_error(stock):
    whole = (stock / "model.safetensors").read_bytes()
    (stock / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(InputError, match="is not a usable checkpoint"):
        build(stock)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("hidden_size", "--hidden_size shape a model from scratch"),
        ("negative_mass_end", "--negative_mass_end needs --negative_mass_until"),
        ("lora_alpha", "--lora_alpha needs --lora_rank"),
        ("negative_mass_until attn_negative_mass", "--negative_mass_until and --attn_negative_mass contradict"),
        ("negative_mass_until lora_rank", "--negative_mass_until and --lora_rank contradict"),
        ("lora_rank attn_activation", "--lora_rank and --attn_activation contradict"),
        ("lora_rank attn_negative_mass", "--lora_rank and --attn_negative_mass contradict"),
    ],
)
def test_options_without_effect_and_options_that_contradict_each_other_are_refused(typed, message, stock):
    with pytest.raises(InputError, match=message):
        check_options(ModelArguments(model_name_or_path=str(stock)), ["model_name_or_path", *typed.split()])


def test_a_missing_folder_is_refused_before_data_are_read(tmp_path):
    with pytest.raises(InputError, match=f"found none at {tmp_path}/absent"):
        check_options(ModelArguments(model_name_or_path=f"{tmp_path}/absent"), ["model_name_or_path"])


def test_only_a_checkpoint_gets_an_adapter():
    check_options(ModelArguments(), ["hidden_size", "attn_negative_mass"])
    with pytest.raises(InputError, match="--lora_rank needs --model_name_or_path"):
        check_options(ModelArguments(), ["lora_rank"])


def test_a_tokenizer_that_can_neither_pad_nor_end_a_text_is_refused():
    tokenizer = SimpleNamespace(pad_token=None, eos_token=None)
    with pytest.raises(InputError, match="padding"):
        able_to_pad(tokenizer, "someone/model")
    tokenizer.eos_token = "</s>"
    assert able_to_pad(tokenizer, "someone/model").pad_token == "</s>"


def test_a_new_model_has_the_shape_asked_for_and_the_classes():
    config = scratch_config(BertConfig, ModelArguments(hidden_size=64), ["no", "yes"])
    assert (config.hidden_size, config.num_labels) == (64, 2)
