"""attn_scope="window": tokens attend to their neighbourhood only."""

import pytest
import torch
from transformers import BertConfig, BertModel

from hf_bidir import BidirBertConfig, BidirBertModel, BidirViTConfig, BidirViTModel, convert_checkpoint
from hf_bidir.checkpoints.convert import restore_softmax

COMMON = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
FAMILIES = {
    "bert": (BidirBertModel, BidirBertConfig, {"vocab_size": 40, "initializer_range": 0.3}),
    "vit": (BidirViTModel, BidirViTConfig, {"image_size": 8, "patch_size": 2, "num_channels": 1}),
}
every_family = pytest.mark.parametrize("family", FAMILIES)


def model_of(family, **fields):
    head, config, shape = FAMILIES[family]
    torch.manual_seed(0)
    return head(config(**COMMON | shape | fields)).eval()


def inputs_of(family):
    generator = torch.Generator().manual_seed(0)
    if family == "vit":
        return {"pixel_values": torch.randn(2, 1, 8, 8, generator=generator)}
    keep = (torch.arange(9) < torch.tensor([[9], [5]])).long()
    return {"input_ids": torch.randint(1, 40, (2, 9), generator=generator) * keep, "attention_mask": keep}


def test_no_stock_model_equals_one_with_a_window_and_a_converted_checkpoint_is_global(tmp_path):
    model_of("bert", attn_scope="window", attn_window=1, attn_activation="softmax").save_pretrained(tmp_path / "a")
    with pytest.raises(ValueError, match=r"attn_scope=window.* has no counterpart in transformers"):
        restore_softmax(tmp_path / "a", tmp_path / "b")
    BertModel(BertConfig(**COMMON, vocab_size=40)).save_pretrained(tmp_path / "stock")
    convert_checkpoint(tmp_path / "stock", tmp_path / "signed")
    assert BidirBertConfig.from_pretrained(tmp_path / "signed").attn_scope == "global"


@every_family
def test_no_coefficient_goes_further_than_the_window_and_those_within_are_tanhmax_of_their_own(family):
    model = model_of(family, attn_scope="window", attn_window=2)
    model.set_attn_implementation("eager")
    for coefficients in model(**inputs_of(family), output_attentions=True).attentions:
        place = torch.arange(coefficients.shape[-1])
        assert (coefficients[..., (place[:, None] - place).abs() > 2] == 0).all()
        assert (coefficients[0] != 0).sum(-1).min() >= 2


@every_family
def test_the_fast_path_has_the_same_window(family):
    results = []
    for implementation in ("eager", "sdpa"):
        model = model_of(family, attn_scope="window", attn_window=2)
        model.set_attn_implementation(implementation)
        state = model(**inputs_of(family)).last_hidden_state
        weights = torch.randn(state.shape, generator=torch.Generator().manual_seed(1))
        (state * weights).sum().backward()
        results.append([state, *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@every_family
def test_a_window_that_holds_everything_is_global_attention(family):
    wide = model_of(family, attn_scope="window", attn_window=50)(**inputs_of(family)).last_hidden_state
    torch.testing.assert_close(wide, model_of(family)(**inputs_of(family)).last_hidden_state)


def test_in_two_layers_a_token_depends_on_what_is_within_two_windows():
    model = model_of("bert", attn_scope="window", attn_window=1)
    ids = inputs_of("bert")["input_ids"][:1]
    changed = ids.clone()
    changed[0, 6] = ids[0, 6] % 39 + 1
    moved = (model(ids).last_hidden_state - model(changed).last_hidden_state).abs().amax(-1)[0] > 1e-7
    assert moved.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attn_scope": "window"}, r'attn_window of at least 1 for attn_scope="window"; got None'),
        ({"attn_scope": "window", "attn_window": 0}, r'attn_window of at least 1 for attn_scope="window"; got 0'),
        ({"attn_window": 3}, r'attn_window=3 needs attn_scope="window"; attn_scope is "global"'),
        (
            {"attn_scope": "local-m"},
            "is not available for bidir_bert; choose one of: global, window",
        ),
    ],
)
def test_a_scope_that_cannot_be_is_one_error_that_names_both_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        BidirBertConfig(**fields)
