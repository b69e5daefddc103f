"""`signed` takes any real number, and a failure leaves the model as it was."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from hf_bidir import BidirBertConfig, bidir_attention, signed
from tests.tiny_models import inputs_of, logits_of, stock_model

NUMBERS = [
    np.float32(0.5),
    np.float64(0.5),
    np.array(0.5),
    torch.tensor(0.5),
    torch.tensor([0.5]).bfloat16()[0],
    Fraction(1, 2),
]
kinds = pytest.mark.parametrize("number", NUMBERS, ids=lambda number: type(number).__name__)


@kinds
def test_any_real_number_is_a_negative_mass_and_is_saved_as_a_float(number, tmp_path):
    model = signed(stock_model("bert"), number)
    assert (model.config.attn_negative_mass, type(model.config.attn_negative_mass)) == (0.5, float)
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).config.attn_negative_mass == 0.5


@kinds
def test_a_number_that_is_assigned_later_counts_as_well(number):
    model = signed(stock_model("bert"))
    model.config.attn_negative_mass = number
    assert torch.equal(
        logits_of(model, inputs_of("bert")), logits_of(signed(stock_model("bert"), 0.5), inputs_of("bert"))
    )


@kinds
def test_the_attention_function_takes_it_too(number):
    inputs = [torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    expected = bidir_attention(*inputs, negative_mass=0.5)[0]
    torch.testing.assert_close(bidir_attention(*inputs, negative_mass=number)[0], expected)
    torch.testing.assert_close(bidir_attention(*inputs, negative_mass=[number, number])[0], expected)


@pytest.mark.parametrize("masses", [np.array([0.25, 1.0]), torch.tensor([0.25, 1.0]), [np.float32(0.25), 1], (0.25, 1)])
def test_lists_and_arrays_of_numbers_become_lists_of_floats(masses):
    assert BidirBertConfig(attn_negative_mass=masses).attn_negative_mass == [0.25, 1.0]


def test_a_number_that_is_put_into_the_list_is_saved_as_a_float(tmp_path):
    model = signed(stock_model("bert"), [1.0, 1.0])
    model.config.attn_negative_mass[0] = np.float32(0.5)
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).config.attn_negative_mass == [0.5, 1.0]


@pytest.mark.parametrize(
    "mass", [None, "half", 2.0, 10**400, np.float32("nan"), [0.5, None], [], [[[0.5]]], torch.zeros(0)]
)
def test_what_is_no_negative_mass_is_refused_at_once_wherever_it_is_given(mass):
    stock, config = stock_model("bert"), BidirBertConfig()
    for give in (lambda: signed(stock, mass), lambda: setattr(config, "attn_negative_mass", mass)):
        with pytest.raises(ValueError, match=r"must (be a number|lie) in \[0, 1\]"):
            give()
    assert config.attn_negative_mass == 1.0


@pytest.mark.parametrize(
    "options", [{"negative_mass": "half"}, {"negative_mass": [0.5]}, {"activation": "tanmax"}], ids=str
)
def test_a_failed_signing_leaves_the_model_as_it_was(options):
    model = stock_model("bert")
    expected, before = logits_of(model, inputs_of("bert")), (type(model), model.config, model.bert.config)
    with pytest.raises(ValueError):  # noqa: PT011  several messages
        signed(model, **options)
    assert (type(model), model.config, model.bert.config) == before
    assert all(not module._forward_hooks and not hasattr(module, "signed_index") for module in model.modules())
    assert torch.equal(logits_of(model, inputs_of("bert")), expected)
    assert type(signed(model)).__name__ == "BidirBertForSequenceClassification"
