"""Trials of healing: the parts on a tiny decoder."""

import copy

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
def test_every_loss_is_0_for_the_teacher_but_for_needed_negatives_and_falls_in_training(teacher, ids, loss):
    equal = signed(copy.deepcopy(teacher), 0.0)
    assert trials.LOSSES[loss](equal, teacher, ids).item() == pytest.approx(
        trials.MARGIN * (loss == "needed"), abs=1e-6
    )
    student = signed(copy.deepcopy(teacher), 1.0).requires_grad_(True)
    optimizer = torch.optim.Adam(student.parameters(), 1e-3)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(trials.LOSSES[loss](student, teacher, ids))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]


def test_heads_are_ordered_by_the_change_of_their_context(teacher, ids):
    student = signed(copy.deepcopy(teacher), 1.0)
    with torch.no_grad():  # scores of 0 in one head: softmax is a mean there, and TanhMax 0
        student.model.layers[1].self_attn.q_proj.weight[8:16] = 0
    order = trials.heads_by_change(student, teacher, ids, 1.0)
    assert sorted(order) == [(layer, head) for layer in range(2) for head in range(4)]
    calls = trials.attention_calls(teacher, ids)
    assert [output.shape for _, output in calls] == [(2, 12, 32)] * 2


def test_heads_that_are_not_chosen_are_softmax(teacher, ids):
    student, seen = signed(copy.deepcopy(teacher), 1.0), []
    trials.set_heads(student, [(0, 1), (1, 3)], 1.0)
    with edited_coefficients(student, lambda a: seen.append(a) or a), torch.no_grad():
        student(ids)
    negative = [(layer, head) for layer, a in enumerate(seen) for head in range(4) if a[:, head].min() < 0]
    assert negative == [(0, 1), (1, 3)]
    assert len(signed_layers(student)) == 2


@pytest.mark.parametrize(
    "way", ["states", "logits", "attention", "heads", "attention-heads", "attention-lora", "balanced-0.4-needed"]
)
def test_every_way_trains_within_its_budget(teacher, way):
    blocks = {kind: torch.randint(0, 60, (16, trials.BLOCK)) for kind in ("reviews", "news")}
    student = signed(copy.deepcopy(teacher), 1.0, attn_activation=trials.WAYS[way].activation)
    before = copy.deepcopy(student.state_dict())
    data = trials.batches({kind: x[:, :16] for kind, x in blocks.items()}, seed=0)
    trained = trials.trained(student, teacher, trials.WAYS[way], 16, 1e-3, data)
    assert any(not torch.equal(x, before[name]) for name, x in trained.state_dict().items() if name in before)
    assert torch.equal(trained.model.embed_tokens.weight, teacher.model.embed_tokens.weight)
    found = trials.scores(trained, {kind: x[:2] for kind, x in blocks.items()})
    assert found["negative_share"] > 0.1
    assert {"reviews", "news", "reviews_without", "news_without"} < found.keys()
