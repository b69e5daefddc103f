"""The benchmark of explanations of causal language models."""

import pytest
import torch

import hf_bidir
from research.explanations import causal
from tests.tiny_models import stock_model


@pytest.fixture
def prompt():
    model = hf_bidir.signed(stock_model("llama"), negative_mass=0.0)
    return causal.Prompt(model, torch.tensor([[4, 5, 6, 7, 8, 9]]), list(range(10, 30)), 0)


def y_of(prompt, ids):
    with torch.no_grad():
        row = prompt.model(input_ids=torch.tensor([ids])).logits[0, -1]
    return (row[prompt.target] - row.mean()).item()


def test_y_falls_by_its_difference_without_the_removed_tokens(prompt):
    removed = torch.tensor([[False, True, False, True, False, False]])
    falls = prompt.falls(removed)
    assert falls["deleted"].item() == pytest.approx(prompt.y - y_of(prompt, [4, 6, 8, 9]), abs=1e-5)
    filled = [[4, new[1], 6, new[3], 8, 9] for new in prompt.replacements.tolist()]
    mean = sum(y_of(prompt, ids) for ids in filled) / len(filled)
    assert falls["replaced"].item() == pytest.approx(prompt.y - mean, abs=1e-5)


def test_a_row_per_method_and_seed_has_the_fall_without_the_best_quarter(prompt):
    rows = {(row["method"], row["seed"]): row for row in causal.measured(prompt)}
    effects = hf_bidir.explain.erasure(prompt.model, prompt.inputs, prompt.target, position=prompt.position)
    best = effects[0, :5].topk(2).indices  # a quarter of five, rounded up; y is read from the sixth
    removed = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, best, True)
    assert rows["erasure", 0]["deleted"] == pytest.approx(prompt.falls(removed)["deleted"].item(), abs=1e-3)
    assert rows["integrated-gradients", 0]["first"] == 0  # the first token is in its baseline
    assert ("random", 9) in rows
