"""Configs, models and backends that cannot be signed are refused with one clear error."""

import pytest
import torch
import transformers

import hf_bidir
from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification, signed
from hf_bidir.modeling.signed_layers import signed_layers
from tests.tiny_models import FAMILIES, inputs_of, stock_model

every_family = pytest.mark.parametrize("family", FAMILIES)
BACKENDS = ["sdpa", "eager"]


def signed_model(family, mass=1.0, **fields):
    return signed(stock_model(family, **fields), mass)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"attn_activation": "tanmax"}, 'Did you mean "tanhmax"'),
        ({"attn_negative_mass": 1.5}, r"must lie in \[0, 1\].*got 1.5"),
        ({"attn_negative_mass": [1.0, [[0.5]]]}, r"a list with one number per head; got \[0.5\]"),
        ({"attn_negative_mass": "one"}, "must be a number"),
        ({"attn_format": 2}, r"saved by a newer hf_bidir \(attn_format 2; this version knows up to 1\)"),
    ],
)
def test_a_config_that_cannot_work_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        BidirBertConfig(**config)


@pytest.mark.parametrize(
    ("mass", "message"),
    [
        ([1.0], r"a list of 2 \(one per signed layer\).*got \[1.0\]"),
        ([1.0, [0.5] * 3], r"attn_negative_mass of layer 1 needs 4 numbers, one per head; got \[0.5, 0.5, 0.5\]"),
    ],
)
def test_a_list_of_negative_masses_has_to_fit_the_layers(mass, message):
    stock = stock_model("bert")
    with pytest.raises(ValueError, match=message):
        signed(stock, mass)
    assert type(stock).__name__ == "BertForSequenceClassification"  # as it was, and can be signed otherwise
    assert len(signed_layers(signed(stock, 0.5))) == 2


def test_a_list_that_is_set_later_has_to_fit_as_well():
    model = signed_model("bert")
    for mass in ([0.1], [0.1, 0.2, 0.3]):
        model.config.attn_negative_mass = mass
        with pytest.raises(ValueError, match=r"a list of 2 \(one per signed layer\)"):
            model(**inputs_of("bert"))


def test_a_stock_config_is_refused():
    with pytest.raises(ValueError, match="expected a BidirBertConfig, which has the attention fields; got BertConfig"):
        hf_bidir.BidirBertModel(stock_model("bert").config)


def test_keys_chosen_by_index_are_refused():
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = transformers.DeepseekV32Config(**shape, vocab_size=60, intermediate_size=32, moe_intermediate_size=16)
    with torch.device("meta"), pytest.raises(ValueError, match=r"keys chosen by index \(DeepseekV32Attention\)"):
        signed(transformers.DeepseekV32Model(config))


def test_a_signed_model_is_not_signed_again():
    with pytest.raises(ValueError, match=r"BidirBertForSequenceClassification is signed already; set model\.config"):
        signed(signed_model("bert"))


def test_a_model_without_such_layers_is_refused_with_the_place_of_its_attention():
    config = transformers.DebertaConfig(vocab_size=60, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(ValueError, match=r"DebertaModel has no layer that .* is in encoder\.layer\.0\.attention\.self"):
        signed(transformers.DebertaModel(config))


def test_attention_outside_the_interface_is_named_and_accepted_only_when_asked(tmp_path):
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40}
    stock = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**shape, image_size=8, patch_size=4))
    with pytest.raises(ValueError, match=r"would stay softmax: .*head\.attention.*partial=True"):
        signed(stock)
    model = signed(stock, partial=True)
    model.save_pretrained(tmp_path)
    assert hf_bidir.BidirSiglipVisionModel.from_pretrained(tmp_path).config.attn_partial


def test_an_unknown_class_is_refused_with_the_closest_name():
    with pytest.raises(AttributeError, match=r'there is no BidirRobertForMaskedLM: .*mean "BidirRobertaForMaskedLM"'):
        hf_bidir.BidirRobertForMaskedLM  # noqa: B018


def test_a_model_class_of_the_user_is_refused():
    class Mine(transformers.BertModel):
        pass

    with pytest.raises(ValueError, match=r"Mine is defined in .*only models of transformers itself"):
        signed(Mine(stock_model("bert").config))


@pytest.mark.parametrize("name", ["flash_attention_9", "someone/attention", "paged|nothing"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_an_attention_backend_that_is_not_supported_is_refused_at_load_and_later(family, name, tmp_path):
    model = signed_model(family)
    model.save_pretrained(tmp_path)
    refused = "it does not compute signed attention; choose"
    with pytest.raises(ValueError, match=refused):
        type(model).from_pretrained(tmp_path, attn_implementation=name)
    with pytest.raises(ValueError, match=refused):
        model.set_attn_implementation(name)
    stock = stock_model(family)
    stock.config._attn_implementation_internal = name
    with pytest.raises(ValueError, match=refused):
        signed(stock)


def test_a_backend_is_refused_before_anything_is_read():
    with pytest.raises(ValueError, match="does not compute signed attention; choose"):
        BidirBertForSequenceClassification.from_pretrained("no/such-model", attn_implementation="flash_attention_9")


def test_packed_examples_are_refused_by_name():
    starts = torch.tensor([0, 5, 9], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"LlamaAttention passes cu_seq_lens_q to its attention function"):
        signed_model("llama")(input_ids=inputs_of("llama")["input_ids"], cu_seq_lens_q=starts)
