"""Centring leaves a softmax model unchanged, and brings TanhMax closer to it."""

import sys

import pytest
import torch
import transformers
from torch.utils._pytree import register_pytree_node

import hf_bidir
from hf_bidir.checkpoints.centring import centre_attention
from hf_bidir.checkpoints.examples import output_tensors
from hf_bidir.checkpoints.layer_hooks import observed_layers

SHAPE = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "initializer_range": 0.3,
}  # fmt: skip
TEXTS = SHAPE | {
    "vocab_size": 30,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IMAGES = SHAPE | {"image_size": 8, "patch_size": 4}
GROUPED = TEXTS | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "attention_bias": True}
MODELS = {
    "BertForSequenceClassification": TEXTS,
    "BertForMultipleChoice": TEXTS,
    "AlbertForSequenceClassification": TEXTS | {"embedding_size": 8},
    "LlamaForSequenceClassification": GROUPED,
    "ViTForImageClassification": IMAGES,
    "BeitForImageClassification": IMAGES,
}
VALUES_ALONE = ("LlamaForSequenceClassification", "BeitForImageClassification")  # rotary keys; keys without a bias


def model_of(name, **options):
    stock_class = getattr(transformers, name)
    if "ALL_ATTENTION_FUNCTIONS" not in vars(sys.modules[stock_class.__module__]):
        pytest.skip(f"this version of transformers computes the attention of {name} in another way")
    fields = MODELS.get(name, {}) | options
    torch.manual_seed(0)
    known = stock_class.config_class().to_dict() | stock_class.config_class.attribute_map
    model = stock_class(stock_class.config_class(**{key: value for key, value in fields.items() if key in known}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)  # biases that are not 0, as in a trained model
    return hf_bidir.signed(model.eval())


def batch_of(name, examples=2):
    generator = torch.Generator().manual_seed(examples)
    if "Image" in name:
        # as in real images, patches have much in common
        return {"pixel_values": 2 + torch.randn(examples, 3, 8, 8, generator=generator)}
    shape = (examples, 3, 6) if "Choice" in name else (examples, 6)
    keep = torch.ones(shape, dtype=torch.long)
    keep[..., 4:] = 0
    return {"input_ids": torch.randint(3, 30, shape, generator=generator) * keep, "attention_mask": keep}


def logits(model, batch, negative_mass):
    model.config.attn_negative_mass = negative_mass
    with torch.no_grad():
        return model(**batch).logits


def mean_states(model, batch):
    """The mean key and value of every head over the tokens that are kept, per run of a layer."""
    means, keep = [], batch.get("attention_mask")

    def add(layer, key, value, context):
        tokens = torch.ones(key.shape[0], key.shape[2]) if keep is None else keep.reshape(-1, key.shape[2])
        means.append([states.movedim(2, 1)[tokens.bool()].mean(0) for states in (key, value)])

    with observed_layers(model, add):
        logits(model, batch, 0.0)
    return means


def test_the_means_are_those_of_all_batches_together():
    name = "BertForSequenceClassification"
    batch = batch_of(name, 6)
    together, apart = model_of(name), model_of(name)
    centre_attention(together, [batch])
    centre_attention(apart, [{key: rows[part] for key, rows in batch.items()} for part in (slice(4), slice(4, 6))])
    for expected, bias in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(bias, expected)


@pytest.mark.parametrize("name", MODELS)
def test_softmax_outputs_do_not_change_and_tanhmax_comes_closer_to_them(name):
    model, batch = model_of(name), batch_of(name, 16)
    softmax = logits(model, batch, 0.0)
    before = (logits(model, batch, 1.0) - softmax).norm()
    centre_attention(model, [batch_of(name, 64)])
    torch.testing.assert_close(logits(model, batch, 0.0), softmax, atol=1e-5, rtol=1e-5)
    assert (logits(model, batch, 1.0) - softmax).norm() < 0.9 * before


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"AlbertForSequenceClassification"}))
def test_afterwards_the_mean_key_and_value_of_the_tokens_that_are_kept_are_0(name):
    model, batch = model_of(name), batch_of(name, 9)
    before = mean_states(model, batch)
    centre_attention(model, [batch])
    for (key, value), (old_key, _) in zip(mean_states(model, batch), before, strict=True):
        torch.testing.assert_close(value, torch.zeros_like(value), atol=1e-5, rtol=0)
        torch.testing.assert_close(key, old_key if name in VALUES_ALONE else torch.zeros_like(key), atol=1e-5, rtol=0)


def test_a_model_with_nothing_to_centre_is_refused():
    model = model_of("ViTForImageClassification", qkv_bias=False)
    with pytest.raises(ValueError, match="of BidirViTForImageClassification has none"):
        centre_attention(model, [batch_of("ViTForImageClassification")])


def test_coefficients_that_do_not_sum_to_1_forbid_it_and_leave_the_weights_as_they_were():
    sinks = {"num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": ["full_attention"] * 2}
    model = model_of("GptOssForSequenceClassification", **GROUPED, **sinks)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="centring changes the softmax outputs"):
        centre_attention(model, [batch_of("GptOssForSequenceClassification")])
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


def test_no_batch_is_refused():
    with pytest.raises(ValueError, match="at least one batch"):
        centre_attention(model_of("BertForSequenceClassification"), [])


class Cache:
    """A cache of keys and values, as one looks after an export of a decoder has registered its class."""

    states = torch.ones(2)


register_pytree_node(Cache, lambda cache: ([cache.states], None), lambda states, _: Cache())


def test_a_cache_is_not_compared_as_an_output():
    logits, hidden = torch.zeros(1), torch.ones(1)
    outputs = output_tensors({"logits": logits, "past_key_values": Cache(), "hidden_states": (hidden, hidden)})
    assert [tensor is expected for tensor, expected in zip(outputs, (logits, hidden, hidden), strict=True)] == [
        True
    ] * 3
