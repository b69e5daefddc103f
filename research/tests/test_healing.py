"""Trials of healing: the parts on a tiny decoder."""

import copy
import itertools

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_bidir import signed
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.modeling.signed_layers import signed_layers
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


@torch.no_grad()
def test_heads_are_ordered_by_the_change_of_their_context(teacher, ids):
    teacher, changes = copy.deepcopy(teacher), {}
    for block in teacher.model.layers:  # so that outputs are contexts, of 8 numbers a head
        block.self_attn.o_proj.weight.copy_(torch.eye(32))
    student = signed(copy.deepcopy(teacher), 1.0)
    for index, (kwargs, softmax) in enumerate(trials.attention_calls(teacher, ids)):
        change = signed_layers(student)[index](**kwargs)[0] - softmax
        for head in range(4):
            part = slice(8 * head, 8 * head + 8)
            changes[index, head] = change[..., part].norm() / softmax[..., part].norm()
    assert trials.heads_by_change(student, teacher, ids, 1.0) == sorted(changes, key=changes.get)


def test_heads_that_are_not_chosen_are_softmax(teacher, ids):
    student, seen = signed(copy.deepcopy(teacher), 1.0), []
    trials.set_heads(student, [(0, 1), (1, 3)], 1.0)
    with edited_coefficients(student, lambda a: seen.append(a) or a), torch.no_grad():
        student(ids)
    negative = [(layer, head) for layer, a in enumerate(seen) for head in range(4) if a[:, head].min() < 0]
    assert negative == [(0, 1), (1, 3)]


# batches for 16 forward passes: a step with a teacher costs 4, one on attention outputs 1.6; one more to order heads
BATCHES = {"states": 4, "logits": 4, "attention": 7, "heads": 5, "attention-heads": 8, "attention-lora": 7}


@pytest.mark.parametrize(("way", "batches"), [*BATCHES.items(), ("balanced-0.4-needed", 2)])
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
