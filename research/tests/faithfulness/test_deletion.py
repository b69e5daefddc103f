"""Curves of deletion and insertion, comprehensiveness, sufficiency and F-Fidelity, against deletion by hand."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from hf_bidir.explain import token_scores
from research.faithfulness import (
    area,
    comprehensiveness,
    f_fidelity,
    prediction_curve,
    sufficiency,
    tuned_on_masks,
)
from research.faithfulness.deletion import without_tokens
from research.faithfulness.masked_fidelity import Masks, _keep
from research.tests.faithfulness.conftest import texts
from tests.explain.conftest import bert, images, pooling, sentences, vit


def probability(model, ids, target):
    return model(torch.tensor([ids])).logits.softmax(-1)[0, target].item()


@pytest.mark.parametrize(
    ("how", "shares", "kept"),
    [
        ("deletion", [0, 0.25, 1], [range(7), [0, 1, 3, 5, 6], [2]]),  # a quarter of seven is two; the first one stays
        ("insertion", [0.4, 1], [[2, 4, 6], range(7)]),
    ],
)
def test_the_highest_scores_are_deleted_or_inserted_first_and_the_text_closes_up(how, shares, kept):
    model, ids = pooling(encoder="gru"), texts()["input_ids"][:1]
    scores, target = torch.tensor([[0.3, -2.0, 1.5, 0.0, 0.9, -0.1, 0.7]]), model(ids).logits.argmax().item()
    curve = prediction_curve(model, {"input_ids": ids}, scores, shares, how)
    expected = [probability(model, [ids[0, index].item() for index in part], target) for part in kept]
    assert curve[:, 0].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_token_of_the_output_and_special_tokens_stay():
    model, ids = bert(), sentences()["input_ids"][:1]
    special = torch.tensor([[True, False, False, False, False, True]])
    left = prediction_curve(model, {"input_ids": ids}, torch.zeros(1, 6), [1.0], special=special)
    expected = model(ids[:, [0, 5]]).logits.softmax(-1)[0, model(ids).logits.argmax()]
    torch.testing.assert_close(left[0, 0], expected.detach())
    only_first = prediction_curve(model, {"input_ids": ids}, torch.zeros(1, 6), [1.0])
    expected = model(ids[:, :1]).logits.softmax(-1)[0, model(ids).logits.argmax()]
    torch.testing.assert_close(only_first[0, 0], expected.detach())


def test_patches_are_painted_with_the_mean_colour():
    model, batch = vit(), images()
    scores = token_scores(model, batch, "contributions")
    curve = prediction_curve(model, batch, scores, [2 / 16])
    best = scores[0, 1:].argsort(descending=True)[:2].tolist()
    painted = batch["pixel_values"][:1].clone()
    for patch in best:
        painted[:, :, patch // 4 * 2 : patch // 4 * 2 + 2, patch % 4 * 2 : patch % 4 * 2 + 2] = 0
    target = model(batch["pixel_values"][:1]).logits.argmax()
    torch.testing.assert_close(curve[0, 0], model(painted).logits.softmax(-1)[0, target].detach())


def test_comprehensiveness_and_sufficiency_are_means_over_shares_and_areas_integrals():
    assert area(torch.tensor([[1.0], [0.75], [0.5]])).tolist() == [0.75]
    model, batch = pooling(), texts()
    scores = token_scores(model, batch, "contributions")
    whole = model(**batch).logits.softmax(-1).amax(-1).detach()
    for measure, how in ((comprehensiveness, "deletion"), (sufficiency, "insertion")):
        curve = prediction_curve(model, batch, scores, (0.01, 0.05, 0.1, 0.2, 0.5), how)
        torch.testing.assert_close(measure(model, batch, scores), whole - curve.mean(0))


MASK = 4


def falls_without_each(model, ids, target):
    """The fall of the probability when each token alone is masked."""
    words, whole = ids[0].tolist(), probability(model, ids[0].tolist(), target)
    return [whole - probability(model, [*words[:i], MASK, *words[i + 1 :]], target) for i in range(ids.shape[1])]


def test_the_token_that_decides_has_a_higher_fidelity_than_the_others():
    """One token is masked per draw, the top one for FFid+ and another one for FFid-."""
    model = bert()
    ids = torch.arange(5, 16).view(1, 11)
    scores = torch.zeros(1, 11)
    scores[0, 3] = 1
    target = model(ids).logits.argmax(-1)
    masks = Masks(MASK, sizes=[0.1], draws=200, alpha=1.0)
    plus, minus = f_fidelity(model, {"input_ids": ids}, scores, target, masks)
    falls = falls_without_each(model, ids, target)
    assert plus.item() == pytest.approx(falls[3], abs=1e-6)
    others = [fall for index, fall in enumerate(falls) if index not in (0, 3)]  # the first token is read, never masked
    assert minus.item() == pytest.approx(sum(others) / 9, abs=4 * torch.tensor(others).std().item() / 200**0.5)


def test_special_tokens_are_never_masked():
    model, ids = bert(), torch.arange(5, 16).view(1, 11)
    special = torch.ones(1, 11, dtype=torch.bool).index_fill(1, torch.tensor([4]), value=False)
    masks = Masks(MASK, sizes=[1.0], draws=2, alpha=1.0, beta=1.0)
    plus, minus = f_fidelity(model, {"input_ids": ids}, torch.rand(1, 11), torch.tensor([1]), masks, special)
    assert plus.item() == pytest.approx(falls_without_each(model, ids, 1)[4], abs=1e-6)
    assert minus.isnan().all()  # nothing is left


@pytest.mark.parametrize(("model", "inputs"), [(bert, sentences), (vit, images)])
def test_tuning_changes_a_copy_and_lowers_the_loss_on_masked_inputs(model, inputs):
    original = model()
    before = {name: weight.clone() for name, weight in original.state_dict().items()}
    labels = torch.tensor([0, 1])
    batch = inputs() | {"labels": labels}
    tuned = tuned_on_masks(original, [batch] * 30, replacement=MASK, beta=0.4, learning_rate=3e-3)
    assert all(torch.equal(weight, before[name]) for name, weight in original.state_dict().items())
    assert not tuned.training
    keep = _keep(original, inputs())
    removed = torch.zeros_like(keep).index_fill(1, torch.tensor([2]), value=True)
    masked = without_tokens(original, inputs(), keep, removed, MASK)
    before_loss, loss = (cross_entropy(model(**masked).logits, labels) for model in (original, tuned))
    assert loss < 0.9 * before_loss
