"""Changes of coefficients and weights: permutation and randomisation; distances of predictions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from research.faithfulness import (
    class_probabilities,
    permuted,
    prediction_changes,
    randomised,
    randomised_stages,
)
from research.tests.faithfulness.conftest import texts
from tests.explain.conftest import bert, family, images, inputs_of, pooling, sentences, vit

CASES = {"pooling": (pooling, texts), "bert": (bert, sentences), "vit": (vit, images)}
every_model = pytest.mark.parametrize("kind", CASES)
both = pytest.mark.parametrize("change", [permuted, randomised])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def masked(length, kept):
    coefficients = torch.randn(2, 3, 4, length, generator=seeded(1))
    keep = torch.zeros(length, dtype=torch.bool)
    keep[torch.randperm(length, generator=seeded(2))[:kept]] = True
    return coefficients * keep, keep


@given(st.integers(1, 7), st.data())
def test_a_permutation_keeps_every_querys_coefficients_and_leaves_padding_alone(length, data):
    coefficients, keep = masked(length, data.draw(st.integers(0, length)))
    shuffled = permuted(coefficients, keep, seeded(data.draw(st.integers(0, 9))))
    assert (shuffled[..., ~keep] == 0).all()
    assert shuffled[..., keep].sort(-1).values.equal(coefficients[..., keep].sort(-1).values)


@given(st.integers(1, 7), st.data())
def test_random_coefficients_keep_the_sum_of_sizes_and_the_number_of_signs(length, data):
    coefficients, keep = masked(length, data.draw(st.integers(1, length)))
    drawn = randomised(coefficients, keep, seeded(data.draw(st.integers(0, 9))))
    torch.testing.assert_close(drawn.abs().sum(-1), coefficients.abs().sum(-1))
    assert (drawn[..., ~keep] == 0).all()
    assert ((drawn < 0).sum(-1) == (coefficients < 0).sum(-1)).all()


def test_random_sizes_are_uniform_over_the_simplex():
    drawn = randomised(torch.full((20_000, 1, 1, 3), 1 / 3), torch.ones(3, dtype=torch.bool), seeded())[:, 0, 0]
    torch.testing.assert_close(drawn.mean(0), torch.full((3,), 1 / 3), rtol=0, atol=0.01)
    torch.testing.assert_close(drawn.var(0), torch.full((3,), 2 / 36), rtol=0, atol=0.005)  # of Dirichlet(1, 1, 1)


@every_model
@both
def test_the_change_is_the_total_variation_between_the_predictions(kind, change):
    model, inputs = CASES[kind][0](), CASES[kind][1]()
    (found,) = prediction_changes(model, inputs, change, draws=1, seed=5)
    generator, keep = seeded(5), inputs.get("attention_mask")

    def changed(coefficients):
        kept = torch.ones(coefficients.shape[-1]) if keep is None else keep[:, None, None]
        return change(coefficients, kept.bool(), generator)

    before = model(**inputs).logits.softmax(-1)
    with edited_coefficients(model, changed):
        after = model(**inputs).logits.softmax(-1)
    torch.testing.assert_close(found, (before - after).abs().sum(-1).detach() / 2)
    assert (found[0] > 1e-4).all()


def test_a_model_without_classes_is_refused():
    with pytest.raises(ValueError, match="expected a classifier of whole inputs, got BidirRnnModel"):
        class_probabilities(pooling().rnn, texts())


@both
def test_in_a_decoder_nothing_moves_to_a_key_that_a_query_does_not_see(change):
    model, moved = family("LlamaForSequenceClassification"), []

    def seen(coefficients, keep, generator):
        moved.append(change(coefficients, keep, generator))
        return moved[-1]

    prediction_changes(model, inputs_of(model), seen, draws=1)
    assert all((coefficients.triu(1) == 0).all() for coefficients in moved)
    assert len(moved) == 3


def test_parts_are_randomised_from_the_head_to_the_embeddings_and_the_model_stays():
    model = bert()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    changed = []
    for name, random in randomised_stages(model):
        now = {key for key, weight in random.named_parameters() if not torch.equal(weight, before[key])}
        changed.append((name, now))
    assert [name for name, _ in changed] == ["head", "block 2", "block 1", "block 0", "embeddings"]
    assert "classifier.weight" in changed[0][1]
    assert not any("encoder" in key for key in changed[0][1])
    assert any("layer.2" in key for key in changed[1][1])
    assert not any("layer.0" in key or "embeddings" in key for key in changed[2][1])
    assert len(changed[-1][1]) > len(changed[-2][1])
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_random_weights_keep_their_mean_and_spread():
    model = vit()
    *_, (_, random) = randomised_stages(model)
    for (name, old), (_, new) in zip(model.named_parameters(), random.named_parameters(), strict=True):
        if old.numel() > 100:
            assert abs(old.std() - new.std()) < 0.3 * old.std(), name
            assert abs(torch.corrcoef(torch.stack([old.flatten(), new.flatten()]))[0, 1]) < 0.5
