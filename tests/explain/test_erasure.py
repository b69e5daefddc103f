"""Leave-one-out in three ways, each against one plain forward pass per token."""

import pytest
import torch

from hf_bidir import BidirBertForMaskedLM
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.explain import erasure
from tests.explain.conftest import asked, bert, images, sentences, vit

BATCHES = [pytest.param(bert, sentences, id="bert"), pytest.param(vit, images, id="vit")]


@torch.no_grad()
def logit(model, inputs, target=1):
    return model(**inputs).logits[:, target]


def renormalised(model, inputs, token):
    def edit(a):
        others = a.clone()
        others[..., token] = 0
        return others * a.abs().sum(-1, keepdim=True) / others.abs().sum(-1, keepdim=True)

    with edited_coefficients(model, edit):
        return logit(model, inputs)


def masked(model, inputs, token):
    keep = inputs["attention_mask"].clone()
    keep[:, token] = 0
    return logit(model, {**inputs, "attention_mask": keep})


def deleted(model, inputs, token):
    return logit(model, {k: torch.cat([v[:, :token], v[:, token + 1 :]], 1) for k, v in inputs.items()})


def painted(model, inputs, token):
    pixels, (row, column) = inputs["pixel_values"].clone(), divmod(token - 1, 4)
    pixels[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 0  # patches of 2 x 2 pixels
    return logit(model, {"pixel_values": pixels})


@pytest.mark.parametrize(
    ("model", "inputs", "how", "without", "tokens"),
    [
        (lambda: bert(0.0), sentences, "renormalise", renormalised, (0, 3)),
        (vit, images, "renormalise", renormalised, (0, 3)),
        (lambda: bert(0.0), sentences, "renormalise", masked, (0, 3)),
        (bert, sentences, "token", deleted, (1, 3)),
        (vit, images, "token", painted, (1, 8)),
    ],
)
def test_the_effect_of_a_token_is_the_fall_of_the_logit_without_it(model, inputs, how, without, tokens):
    model, inputs = model(), inputs()
    effects = asked(erasure, model, inputs, target=1, how=how)
    for token in tokens:
        expected = logit(model, inputs) - without(model, inputs, token)
        torch.testing.assert_close(effects[:, token], expected, atol=1e-5, rtol=1e-4)
    if how == "token":
        assert not effects[:, 0].any()  # the output is read from the first token


def test_positions_move_up_and_a_single_token_is_not_deleted():
    model, inputs = bert(), sentences()
    positions = inputs | {"position_ids": torch.arange(6).unsqueeze(0)}
    torch.testing.assert_close(
        asked(erasure, model, positions, how="token"), asked(erasure, model, inputs, how="token")
    )
    assert asked(erasure, model, {"input_ids": torch.tensor([[2]])}, how="token").tolist() == [[0.0]]


def test_the_position_moves_with_its_token_if_an_earlier_one_is_deleted():
    model, inputs = bert(head=BidirBertForMaskedLM), sentences()
    effects = asked(erasure, model, inputs, target=7, how="token", position=2)
    with torch.no_grad():
        logits = model(**inputs).logits
        whole = logits[:, 2, 7] - logits[:, 2].mean(-1)
        for token, place in ((1, 1), (3, 2)):
            shorter = {k: torch.cat([v[:, :token], v[:, token + 1 :]], 1) for k, v in inputs.items()}
            logits = model(**shorter).logits[:, place]
            without = logits[:, 7] - logits.mean(-1)
            torch.testing.assert_close(effects[:, token], whole - without, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("how", ["renormalise", "zero", "token"])
def test_padding_has_no_effect_and_chunks_do_not_matter(how):
    model, inputs = bert(), sentences()
    effects = asked(erasure, model, inputs, how=how)
    torch.testing.assert_close(asked(erasure, model, inputs, how=how, chunk_size=3), effects, atol=1e-5, rtol=1e-4)
    assert not effects[1, 4:].any()


def test_a_token_with_almost_all_attention_gives_finite_numbers():
    model, inputs = bert(), sentences()

    def dominated(coefficients):
        dominant = torch.zeros_like(coefficients)
        dominant[..., 2], dominant[..., 1] = 1.0, 1e-40
        return dominant

    with edited_coefficients(model, dominated):
        assert asked(erasure, model, inputs).isfinite().all()


def test_an_unknown_how_is_an_error_that_names_the_known_ones():
    with pytest.raises(ValueError, match='"renormalise", "zero" or "token", got \'delete\''):
        asked(erasure, bert(), sentences(), how="delete")
