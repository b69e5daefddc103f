"""Cascading randomisation of weights, and explanations that change with it."""

import torch

from research.faithfulness import randomised_stages
from tests.explain.conftest import bert, vit


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
