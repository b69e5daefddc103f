"""Trials of healing: the parts on a tiny decoder."""

import copy
import itertools

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_bidir import signed
from research.healing import trials


@pytest.fixture(scope="module")
def teacher():
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=60, num_key_value_heads=2, initializer_range=0.3, **shape)
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture
def ids():
    return torch.randint(0, 60, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("loss", trials.LOSSES)
def test_every_loss_is_0_for_the_teacher_itself_but_for_the_margin_of_needed_negatives(teacher, ids, loss):
    found = trials.LOSSES[loss](signed(copy.deepcopy(teacher), 0.0), teacher, ids).item()
    assert found == pytest.approx(trials.MARGIN * (loss == "needed"), abs=1e-6)


@pytest.mark.parametrize("loss", trials.LOSSES)
def test_every_loss_falls_in_training(teacher, ids, loss):
    student = signed(copy.deepcopy(teacher), 1.0).requires_grad_(True)
    optimizer = torch.optim.Adam(student.parameters(), 1e-3)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(trials.LOSSES[loss](student, teacher, ids))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]


# batches for 16 forward passes: a step with a teacher costs 4, one on attention outputs 1.6
BATCHES = {"states": 4, "logits": 4, "attention": 7, "balanced-0.2-needed": 2}


@pytest.mark.parametrize(("way", "batches"), BATCHES.items())
def test_every_way_trains_all_but_the_embeddings_within_its_budget(teacher, way, batches):
    blocks = {kind: torch.randint(0, 60, (16, 16)) for kind in ("reviews", "news")}
    data, chosen = itertools.islice(trials.batches(blocks, seed=0), batches), trials.WAYS[way]
    student = signed(copy.deepcopy(teacher), chosen.mass, attn_activation=chosen.activation)
    trained = trials.trained(student, teacher, chosen, 16, 1e-3, data)
    assert next(data, None) is None
    expected = teacher.state_dict()
    kept = [name for name, x in trained.state_dict().items() if torch.equal(x, expected[name])]
    assert "model.embed_tokens.weight" in kept
    assert not any("proj" in name for name in kept)


def test_scores_are_perplexities_with_and_without_negative_coefficients_and_their_share(teacher):
    blocks = {"reviews": torch.randint(0, 60, (2, trials.BLOCK), generator=torch.Generator().manual_seed(0))}
    softmax = trials.scores(signed(copy.deepcopy(teacher), 0.0), blocks)
    assert softmax["reviews"] == pytest.approx(teacher(blocks["reviews"], labels=blocks["reviews"]).loss.exp().item())
    assert softmax["reviews_without"] == pytest.approx(softmax["reviews"], rel=1e-5)
    assert softmax["negative_share"] == 0
    tanhmax = trials.scores(signed(copy.deepcopy(teacher), 1.0), blocks)
    assert tanhmax["reviews_without"] != pytest.approx(tanhmax["reviews"], rel=0.01)
    assert 0.3 < tanhmax["negative_share"] < 0.7
