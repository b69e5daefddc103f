"""Which models, numbers and backends `signed` takes, and one clear error for every other; a failure changes nothing."""

from fractions import Fraction

import numpy as np
import pytest
import torch
import transformers

import hf_bidir
from hf_bidir import BidirBertConfig, signed
from hf_bidir.modeling.signed_layers import signed_layers
from tests.tiny_models import inputs_of, logits_of, stock_model

NUMBERS = [np.float32(0.5), np.array(0.5), torch.tensor([0.5]).bfloat16()[0], Fraction(1, 2)]
INPUTS = inputs_of("bert")


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: type(number).__name__)
def test_any_real_number_is_a_negative_mass_when_signing_and_later_and_is_saved_as_a_float(number, tmp_path):
    model, expected = signed(stock_model("bert"), number), logits_of(signed(stock_model("bert"), 0.5), INPUTS)
    assert torch.equal(logits_of(model, INPUTS), expected)
    model.config.attn_negative_mass = [number, 0.5]
    assert torch.equal(logits_of(model, INPUTS), expected)
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).config.attn_negative_mass == [0.5, 0.5]


@pytest.mark.parametrize("mass", [None, "half", 2.0, 10**400, np.float32("nan"), [0.5, None], [], [[[0.5]]]])
def test_what_is_no_negative_mass_is_refused_at_once_wherever_it_is_given(mass):
    stock, config = stock_model("bert"), BidirBertConfig()
    for give in (lambda: signed(stock, mass), lambda: setattr(config, "attn_negative_mass", mass)):
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
            give()
    assert config.attn_negative_mass == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"negative_mass": [1.0]}, r"a list of 2 \(one per signed layer\).*got \[1.0\]"),
        ({"negative_mass": [1.0, [0.5] * 3]}, r"of layer 1 needs 4 numbers, one per head; got \[0.5, 0.5, 0.5\]"),
        ({"attn_activation": "tanmax"}, 'Did you mean "tanhmax"'),
    ],
)
def test_a_failed_signing_leaves_the_model_as_it_was(options, message):
    model = stock_model("bert")
    expected, fields = logits_of(model, INPUTS), model.config.to_dict()
    before = type(model), model.config, model.bert.config
    with pytest.raises(ValueError, match=message):
        signed(model, **options)
    assert (type(model), model.config, model.bert.config) == before
    assert model.config.to_dict() == fields
    assert all(not module._forward_hooks and not hasattr(module, "signed_index") for module in model.modules())
    assert torch.equal(logits_of(model, INPUTS), expected)
    assert len(signed_layers(signed(model))) == 2


def test_a_list_that_is_set_later_has_to_fit_as_well():
    model = signed(stock_model("bert"))
    for mass in ([0.1], [0.1, 0.2, 0.3]):
        model.config.attn_negative_mass = mass
        with pytest.raises(ValueError, match=r"a list of 2 \(one per signed layer\)"):
            model(**INPUTS)


def test_a_newer_format_and_a_stock_config_are_refused():
    with pytest.raises(ValueError, match=r"saved by a newer hf_bidir \(attn_format 2; this version knows up to 1\)"):
        BidirBertConfig(attn_format=2)
    with pytest.raises(ValueError, match="expected a BidirBertConfig, which has the attention fields; got BertConfig"):
        hf_bidir.BidirBertModel(stock_model("bert").config)


SPARSE = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "moe_intermediate_size": 16}
SMALL = {"vocab_size": 60, "num_hidden_layers": 1, "intermediate_size": 32}
TINY = {"hidden_size": 8, "num_attention_heads": 2}
UNSIGNABLE = {
    "BigBirdModel": (TINY, r"BigBirdBlockSparseAttention \(.*load it with attention_type=\"original_full\"\)\.$"),
    "DeepseekV32Model": (SPARSE, r"DeepseekV32Attention selects keys by index"),
    "FNetModel": ({"hidden_size": 8}, "FNetModel has no layer that computes softmax attention"),
    "NystromformerModel": (TINY, r"NystromformerSelfAttention \(its coefficients are a product of three"),
}


@pytest.mark.parametrize("name", [name for name in UNSIGNABLE if hasattr(transformers, name)])
def test_attention_that_cannot_be_signed_is_refused_with_the_reason(name):
    stock, (fields, message) = getattr(transformers, name), UNSIGNABLE[name]
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        signed(stock(stock.config_class(**SMALL | fields)))


def test_an_unknown_class_is_refused_with_the_closest_name_and_one_of_the_user_by_its_module():
    with pytest.raises(AttributeError, match=r'there is no BidirRobertForMaskedLM: .*mean "BidirRobertaForMaskedLM"'):
        hf_bidir.BidirRobertForMaskedLM  # noqa: B018

    class Mine(transformers.BertModel):
        pass

    with pytest.raises(ValueError, match=r"Mine is defined in .*only models of transformers itself"):
        signed(Mine(stock_model("bert").config))


def test_an_attention_backend_that_is_not_supported_is_refused_when_signing_and_in_a_call():
    stock, model = stock_model("bert"), signed(stock_model("bert"))
    for config in (stock.config, model.config):
        config._attn_implementation_internal = "flash_attention_9"
    for use in (lambda: signed(stock), lambda: model(**INPUTS)):
        with pytest.raises(ValueError, match=r"flash_attention_9.*does not compute signed attention; choose"):
            use()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attn_scope": "window"}, 'attn_window=None with "window"'),
        ({"attn_scope": "window", "attn_window": 0}, 'attn_window=0 with "window"'),
        ({"attn_window": 3}, 'attn_window=3 with "global"'),
        ({"attn_scope": "local-m"}, "global, window"),
    ],
)
def test_a_scope_that_cannot_be_is_one_error_that_names_both_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        BidirBertConfig(**fields)
