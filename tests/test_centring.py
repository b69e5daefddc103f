"""Centring changes nothing in a softmax model, and brings TanhMax nearer to it."""

import pytest
import torch

from hf_bidir import (
    BidirBertConfig,
    BidirBertForMultipleChoice,
    BidirBertForSequenceClassification,
    BidirDeiTConfig,
    BidirDeiTForImageClassification,
    BidirViTConfig,
    BidirViTForImageClassification,
)
from hf_bidir.centring import centre_attention

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
IMAGES = {**SHAPE, "image_size": 8, "patch_size": 4}
MODELS = {
    "bert": (BidirBertForSequenceClassification, BidirBertConfig(**SHAPE, vocab_size=30, initializer_range=0.3)),
    "choice": (BidirBertForMultipleChoice, BidirBertConfig(**SHAPE, vocab_size=30, initializer_range=0.3)),
    "vit": (BidirViTForImageClassification, BidirViTConfig(**IMAGES, initializer_range=0.3)),
    "deit": (BidirDeiTForImageClassification, BidirDeiTConfig(**IMAGES, initializer_range=0.3)),
}


def model_of(name):
    head, config = MODELS[name]
    torch.manual_seed(0)
    model = head(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)  # biases that are not 0, as in a trained model
    return model.eval()


def batch_of(name, examples=2):
    generator = torch.Generator().manual_seed(examples)
    if name in ("vit", "deit"):
        # as in real images, patches have much in common
        return {"pixel_values": 2 + torch.randn(examples, 3, 8, 8, generator=generator)}
    shape = (examples, 3, 6) if name == "choice" else (examples, 6)
    keep = torch.ones(shape, dtype=torch.long)
    keep[..., 4:] = 0
    return {"input_ids": torch.randint(30, shape, generator=generator), "attention_mask": keep}


def logits(model, batch, negative_mass):
    model.config.attn_negative_mass = negative_mass
    with torch.no_grad():
        return model(**batch).logits


@pytest.mark.parametrize("name", MODELS)
def test_a_softmax_model_s_outputs_do_not_change(name):
    model, batch = model_of(name), batch_of(name)
    before = logits(model, batch, 0.0)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    centre_attention(model, [batch_of(name, 5), batch_of(name, 7)])
    torch.testing.assert_close(logits(model, batch, 0.0), before, atol=1e-5, rtol=1e-5)
    assert any(not torch.equal(value, weights[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", MODELS)
def test_tanhmax_comes_nearer_to_softmax(name):
    model, batch = model_of(name), batch_of(name, 16)
    softmax = logits(model, batch, 0.0)
    before = (logits(model, batch, 1.0) - softmax).norm()
    centre_attention(model, [batch_of(name, 64)])
    assert (logits(model, batch, 1.0) - softmax).norm() < 0.9 * before


def test_afterwards_the_mean_key_and_value_of_the_tokens_that_are_kept_are_0():
    model, batch = model_of("bert"), batch_of("bert", 9)
    centre_attention(model, [batch])
    outputs = []
    attention = model.bert.encoder.layer[0].attention.self
    for projection in (attention.key, attention.value):
        projection.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    logits(model, batch, 0.0)
    for output in outputs:
        mean = output[batch["attention_mask"].bool()].mean(0)
        torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-5, rtol=0)


def test_the_model_is_left_in_the_mode_and_with_the_negative_mass_that_it_had():
    model = model_of("bert").train()
    model.config.attn_negative_mass = 0.5
    centre_attention(model, [batch_of("bert")])
    assert (model.training, model.config.attn_activation, model.config.attn_negative_mass) == (True, "tanhmax", 0.5)


def test_projections_without_biases_are_refused():
    model = BidirViTForImageClassification(BidirViTConfig(**IMAGES, qkv_bias=False))
    with pytest.raises(ValueError, match="biases"):
        centre_attention(model, [batch_of("vit")])


def test_no_batch_is_refused():
    with pytest.raises(ValueError, match="at least one batch"):
        centre_attention(model_of("bert"), [])
