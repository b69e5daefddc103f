"""Leave-one-out scores, each against one plain forward pass per token."""

import pytest
import torch

from hf_bidir import BidirBertForMaskedLM
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.explain import ForwardCache, Request, deletion, erasure
from tests.explain.conftest import asked, bert, images, pooling, sentences, vit


@torch.no_grad()
def logit(model, inputs):
    return model(**inputs).logits[:, 1]


def renormalised(model, inputs, token):
    def edit(coefficients):
        others = coefficients.clone()
        others[..., token] = 0
        return others * coefficients.abs().sum(-1, keepdim=True) / others.abs().sum(-1, keepdim=True)

    with edited_coefficients(model, edit):
        return logit(model, inputs)


def masked(model, inputs, token):
    others = torch.arange(6) != token
    return logit(model, inputs | {"attention_mask": inputs["attention_mask"] * others})


def without(inputs, token):
    return {name: torch.cat([rows[:, :token], rows[:, token + 1 :]], 1) for name, rows in inputs.items()}


def deleted(model, inputs, token):
    return logit(model, without(inputs, token))


def painted(model, inputs, token):
    pixels = inputs["pixel_values"].clone()
    row, column = divmod(token - 1, 4)  # patches of 2 x 2 pixels after a class token
    pixels[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 0
    return logit(model, {"pixel_values": pixels})


@pytest.mark.parametrize(
    ("model", "inputs", "method", "remaining", "tokens"),
    [
        (lambda: bert(0.0), sentences, erasure, masked, (0, 3)),
        (vit, images, erasure, renormalised, (0, 3)),
        (bert, sentences, deletion, deleted, (1, 3)),
        (vit, images, deletion, painted, (1, 8, 16)),
    ],
)
def test_the_effect_of_a_token_is_the_fall_of_the_logit_without_it(model, inputs, method, remaining, tokens):
    model, inputs = model(), inputs()
    effects = asked(method, model, inputs, target=torch.tensor([1, 1]))  # one of each example
    for token in tokens:
        expected = logit(model, inputs) - remaining(model, inputs, token)
        torch.testing.assert_close(effects[:, token], expected, atol=1e-5, rtol=1e-4)
    assert effects[:, 0].any() == (method is erasure)  # the output is read from the first token


def test_a_single_token_is_not_deleted():
    assert asked(deletion, bert(), {"input_ids": torch.tensor([[2]])}).tolist() == [[0.0]]


def test_the_position_moves_with_its_token_if_an_earlier_one_is_deleted():
    model, inputs = bert(head=BidirBertForMaskedLM), sentences()
    effects = asked(deletion, model, inputs, target=7, position=2)

    @torch.no_grad()
    def y(rows, position):
        logits = model(**rows).logits[:, position]
        return logits[:, 7] - logits.mean(-1)

    for token, position in ((1, 1), (3, 2)):
        expected = y(inputs, 2) - y(without(inputs, token), position)
        torch.testing.assert_close(effects[:, token], expected, atol=1e-5, rtol=1e-4)
    assert not effects[:, 2].any()


@pytest.mark.parametrize(("method", "options"), [(erasure, {}), (erasure, {"rescale": False}), (deletion, {})])
def test_padding_has_no_effect_and_chunks_do_not_matter(method, options):
    model, inputs = bert(), sentences()
    effects = asked(method, model, inputs, **options)
    torch.testing.assert_close(asked(method, model, inputs, chunk_size=3, **options), effects, atol=1e-5, rtol=1e-4)
    assert not effects[1, 4:].any()


def test_a_token_with_almost_all_attention_gives_finite_numbers():
    model, inputs = bert(), sentences()

    def dominated(coefficients):
        dominant = torch.zeros_like(coefficients)
        dominant[..., 2], dominant[..., 1] = 1.0, 1e-40
        return dominant

    with edited_coefficients(model, dominated):
        assert asked(erasure, model, inputs).isfinite().all()


def test_the_pieces_of_a_word_are_deleted_together():
    model, inputs = bert(), {"input_ids": torch.tensor([[2, 5, 6, 7, 8, 3], [2, 9, 8, 7, 6, 3]])}
    units = torch.tensor([[0, 1, 1, 2, 3, 4], [0, 1, 2, 2, 2, 3]])
    cache = ForwardCache(model, inputs, units)
    effects = deletion(cache, Request(target=torch.tensor([1, 1])))
    shorter = torch.tensor([[2, 7, 8, 3]]), torch.tensor([[2, 9, 3]])
    for row, (first, rest) in enumerate(zip((1, 2), shorter, strict=True)):
        expected = logit(model, inputs)[row] - logit(model, {"input_ids": rest})[0]
        torch.testing.assert_close(effects[row, first], expected, atol=1e-5, rtol=1e-4)
        assert not effects[row, first + 1]


def test_a_word_that_is_the_whole_text_is_not_deleted():
    model, inputs = pooling(), {"input_ids": torch.tensor([[5, 6, 7]])}
    cache = ForwardCache(model, inputs, torch.zeros(1, 3).long())
    assert deletion(cache, Request()).tolist() == [[0.0, 0.0, 0.0]]
