"""A signed model computes softmax for a while, or becomes the stock model again."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import hf_bidir
from hf_bidir.checkpoints.examples import example_inputs
from tests.tiny_models import SHAPE, TEXT, random_model, stock_model

OTHERS = {  # with attention outside transformers' interface, and of parts with their own configs
    "deberta-v2": ("DebertaV2ForTokenClassification", SHAPE | TEXT),
    "siglip": (
        "SiglipModel",
        {"text_config": SHAPE | {"vocab_size": 60}, "vision_config": SHAPE | {"image_size": 16}},
    ),
}


def outputs(model):
    with torch.no_grad():
        return model(**example_inputs(model))[0]


@pytest.fixture(params=["bert", "llama", "vit", "bart", *OTHERS])
def stock(request):
    if request.param not in OTHERS:
        return stock_model(request.param)
    name, fields = OTHERS[request.param]
    return random_model(name, **fields)


def test_a_signed_model_computes_softmax_inside_the_context_only(stock):
    expected = outputs(stock)
    model = hf_bidir.signed(copy.deepcopy(stock), negative_mass=1.0)
    signed = outputs(model)
    with hf_bidir.softmax(model):
        assert torch.equal(outputs(model), expected)
        with ThreadPoolExecutor() as pool:  # another thread is outside
            assert torch.equal(pool.submit(outputs, model).result(), signed)
    assert torch.equal(outputs(model), signed)
    assert not torch.equal(signed, expected)


def test_the_coefficients_are_those_of_softmax_inside_the_context():
    model = hf_bidir.signed(stock_model("bert"))
    with hf_bidir.softmax(model), torch.no_grad():
        coefficients = model(**example_inputs(model), output_attentions=True).attentions[0]
    torch.testing.assert_close(coefficients.sum(-1), torch.ones(coefficients.shape[:-1]))


def test_a_recurrent_model_computes_softmax_inside_the_context():
    config = {"vocab_size": 20, "hidden_size": 8, "embedding_size": 8, "num_labels": 2}
    torch.manual_seed(0)
    model = hf_bidir.BidirRnnForSequenceClassification(hf_bidir.BidirRnnConfig(**config)).eval()
    with hf_bidir.softmax(model):
        inside = outputs(model)
    model.config.attn_activation = "softmax"
    assert torch.equal(inside, outputs(model))


def test_unsigned_gives_the_stock_model_back_which_saves_and_signs_as_before(stock, tmp_path):
    expected, fields = outputs(stock), stock.config.to_dict()
    model = hf_bidir.unsigned(hf_bidir.signed(copy.deepcopy(stock), negative_mass=0.0))
    assert [type(part) for part in model.modules()] == [type(part) for part in stock.modules()]
    assert [vars(part).keys() for part in model.modules()] == [vars(part).keys() for part in stock.modules()]
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert torch.equal(outputs(model), expected)
    assert model.config.to_dict() == {name: value for name, value in fields.items() if name != "architectures"}
    model.save_pretrained(tmp_path)
    assert torch.equal(outputs(type(stock).from_pretrained(tmp_path).eval()), expected)
    assert not torch.equal(outputs(hf_bidir.signed(model)), expected)


@pytest.mark.parametrize(
    ("fields", "named"), [({"attn_negative_mass": 0.5}, "mass=0.5"), ({"attn_window": 1}, "window=1")]
)
def test_a_model_that_no_stock_model_equals_is_refused_and_stays_as_it_is(fields, named):
    model = hf_bidir.signed(stock_model("bert"), negative_mass=0.0)
    for name, value in fields.items():
        setattr(model.config, name, value)
    with pytest.raises(ValueError, match=named):
        hf_bidir.unsigned(model)
    assert type(model).__name__ == "BidirBertForSequenceClassification"


def test_a_model_that_is_not_signed_is_refused():
    stock = stock_model("bert")
    with pytest.raises(ValueError, match="is not signed"):
        hf_bidir.unsigned(stock)
    with pytest.raises(ValueError, match="is not signed"), hf_bidir.softmax(stock):
        pass
