"""A negative mass that every head learns: where it starts, that it moves, and that it is saved."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification

from hf_bidir import (
    BidirBertConfig,
    BidirBertForSequenceClassification,
    BidirViTConfig,
    BidirViTForImageClassification,
)
from hf_bidir.hub.isolated import isolated_forward

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
START = [[0.1, 0.2], [0.3, 0.4]]
FAMILIES = {
    "bert": (BertConfig, BertForSequenceClassification, BidirBertConfig, BidirBertForSequenceClassification),
    "vit": (ViTConfig, ViTForImageClassification, BidirViTConfig, BidirViTForImageClassification),
}


def shape_of(family):
    return {**SMALL, "vocab_size": 30} if family == "bert" else {**SMALL, "image_size": 8, "patch_size": 4}


def inputs_of(family):
    torch.manual_seed(1)
    return {"input_ids": torch.randint(30, (2, 5))} if family == "bert" else {"pixel_values": torch.randn(2, 3, 8, 8)}


def learning_model(family):
    _, _, config, head = FAMILIES[family]
    torch.manual_seed(0)
    return head(config(**shape_of(family), attn_negative_mass=START, attn_learn_negative_mass=True)).eval()


def masses(model):
    model.write_learned_negative_mass()
    return torch.tensor(model.config.attn_negative_mass)


@pytest.mark.parametrize("family", FAMILIES)
def test_at_its_start_it_computes_what_the_fixed_one_computes(family):
    model, (_, _, config, head) = learning_model(family), FAMILIES[family]
    fixed = head(config(**shape_of(family), attn_negative_mass=START)).eval()
    fixed.load_state_dict({k: v for k, v in model.state_dict().items() if "negative_mass" not in k})
    inputs = inputs_of(family)
    torch.testing.assert_close(model(**inputs).logits, fixed(**inputs).logits)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_every_head_gets_a_gradient(family, implementation):
    model = learning_model(family)
    model.set_attn_implementation(implementation)
    model(**inputs_of(family)).logits[:, 0].sum().backward()
    gradients = [p.grad for name, p in model.named_parameters() if name.endswith("negative_mass_logit")]
    assert len(gradients) == 2
    assert all((gradient != 0).all() for gradient in gradients)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stock_checkpoint_starts_where_the_config_says(family, tmp_path):
    stock_config, stock_head, config, head = FAMILIES[family]
    stock_head(stock_config(**shape_of(family))).save_pretrained(tmp_path)
    model = head.from_pretrained(
        tmp_path, config=config(**shape_of(family), attn_negative_mass=START, attn_learn_negative_mass=True)
    )
    torch.testing.assert_close(masses(model), torch.tensor(START))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_learned_is_saved_with_the_weights_and_named_in_the_config(family, tmp_path):
    model = learning_model(family)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("negative_mass_logit"):
                parameter += 1
    expected = torch.tensor(START).logit().add(1).sigmoid()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(torch.tensor(again.config.attn_negative_mass), expected)
    torch.testing.assert_close(masses(again), expected)
    inputs = inputs_of(family)
    torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits)


def test_it_loads_where_hf_bidir_is_not_installed(tmp_path):
    model = learning_model("bert")
    model.save_pretrained(tmp_path)
    inputs = inputs_of("bert")
    logits = isolated_forward(tmp_path, "AutoModelForSequenceClassification", inputs)["logits"]
    torch.testing.assert_close(logits, model(**inputs).logits)


@pytest.mark.parametrize("fields", [{"attn_negative_mass": 0.0}, {"attn_negative_mass": 1.0},
                                    {"attn_negative_mass": 0.1, "attn_activation": "softmax"}])  # fmt: skip
def test_a_start_that_could_not_move_is_refused(fields):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        BidirBertConfig(attn_learn_negative_mass=True, **fields)
