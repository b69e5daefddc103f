"""F-Fidelity: masks of part of an explanation, on a model tuned on masked inputs."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from research.faithfulness import f_fidelity, tuned_on_masks
from research.faithfulness.deletion import without_tokens
from research.faithfulness.masked_fidelity import _keep
from tests.explain.conftest import bert, images, sentences, vit

MASK = 4


def probability(model, ids, target):
    return model(torch.tensor([ids])).logits.softmax(-1)[0, target].item()


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
    options = {"target": target, "replacement": MASK, "draws": 200, "progress": False}
    plus, minus = f_fidelity(model, {"input_ids": ids}, scores, sizes=[0.1], alpha=1.0, **options)
    falls = falls_without_each(model, ids, target)
    assert plus.item() == pytest.approx(falls[3], abs=1e-6)
    others = [fall for index, fall in enumerate(falls) if index not in (0, 3)]  # the first token is read, never masked
    assert minus.item() == pytest.approx(sum(others) / 9, abs=4 * torch.tensor(others).std().item() / 200**0.5)


def test_a_text_too_short_for_a_mask_has_no_fidelity():
    plus, minus = f_fidelity(bert(), sentences(), torch.rand(2, 6), target=torch.tensor([0, 1]), replacement=MASK)
    assert plus.isnan().all()
    assert minus.isnan().all()


def test_special_tokens_are_never_masked():
    model, ids = bert(), torch.arange(5, 16).view(1, 11)
    special = torch.ones(1, 11, dtype=torch.bool).index_fill(1, torch.tensor([4]), value=False)
    options = {"target": torch.tensor([1]), "replacement": MASK, "special": special, "beta": 1.0, "alpha": 1.0}
    plus, minus = f_fidelity(model, {"input_ids": ids}, torch.rand(1, 11), sizes=[1.0], draws=2, **options)
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
