"""Healing of language models: the parts on a tiny decoder."""

import copy
import itertools

import pytest
import torch
from pandas import DataFrame
from transformers import LlamaConfig, LlamaForCausalLM

from hf_bidir import signed
from research.healing import healed, trials


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


def words_of(model):
    """Blocks that the model generated, so that no temperature but 1 suits them better."""
    torch.manual_seed(0)
    start = torch.randint(0, 60, (40, 1))
    return model.generate(start, do_sample=True, top_k=0, min_new_tokens=40, max_new_tokens=40)


def test_the_best_temperature_undoes_a_factor_of_the_logits(teacher):
    texts = words_of(teacher)
    assert healed.best_temperature(teacher, texts) == pytest.approx(1, abs=0.11)
    confident = copy.deepcopy(teacher)
    confident.lm_head.weight.data *= 1.3
    factor = healed.best_temperature(confident, texts) / healed.best_temperature(teacher, texts)
    assert factor == pytest.approx(1.3, abs=0.06)


def test_the_temperature_comes_from_the_first_half_of_the_blocks_and_the_perplexity_from_the_second(teacher):
    texts = words_of(teacher)
    noise = torch.randint(0, 60, texts.shape)  # suits a teacher that is less confident
    numbers = healed.matched(teacher, {"reviews": torch.cat([noise, texts])})
    assert numbers["temperature"] == healed.best_temperature(teacher, noise)
    assert numbers["temperature"] > healed.best_temperature(teacher, texts)
    assert numbers["reviews"] == trials.perplexities(teacher, {"": texts}, numbers["temperature"])[""]


def test_a_row_has_every_measure_of_the_table_and_only_a_signed_model_needs_negative_coefficients(teacher):
    blocks = dict.fromkeys(healed.TEXTS, words_of(teacher))
    softmax = healed.measured(signed(copy.deepcopy(teacher), 0.0), blocks)
    balanced = healed.measured(signed(copy.deepcopy(teacher), 0.5, attn_activation="balanced"), blocks)
    assert healed.MEASURES.keys() <= softmax.keys() == balanced.keys()
    assert softmax["messages_without"] == pytest.approx(softmax["messages"], rel=1e-5)
    assert softmax["negative_share"] == 0
    assert balanced["messages_without"] != pytest.approx(balanced["messages"], rel=0.01)
    assert 0.1 < balanced["negative_share"] < 0.7


def test_the_table_has_the_mean_of_the_seeds_and_the_difference_of_each():
    rows = [dict.fromkeys(healed.MEASURES, value) for value in (8.0, 7.0, 9.5)]
    names = [{"model": name} for name in (healed.SOFTMAX, "mine-0", "mine-1")]
    found = healed.table(DataFrame([name | row for name, row in zip(names, rows, strict=True)]))
    assert "| perplexity, messages | 8.0 | 8.2 ± 1.8 | -1.0, +1.5 |" in found
    assert "| healed, 2 seeds |" in found
