"""Paths add up to the network; the tasks are what they say."""

import pytest
import torch

from hf_bidir import BidirBertConfig, BidirBertForTokenClassification
from hf_bidir.analysis.collapse_tasks import GRID, RADIUS, circle, convex_hull, memorization, sorting
from hf_bidir.analysis.paths import bare_attention, path_states
from tests.explain.conftest import vit


def bare(layers=3, **options):
    torch.manual_seed(0)
    config = BidirBertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=16,
        initializer_range=0.3, **options,
    )  # fmt: skip
    return bare_attention(BidirBertForTokenClassification(config)).eval()


INPUTS = {"input_ids": torch.arange(12).view(2, 6)}


@pytest.mark.parametrize("activation", ["tanhmax", "softmax"])
def test_paths_of_all_lengths_add_up_to_the_network(activation):
    model = bare(attn_activation=activation)
    states = model.bert(**INPUTS).last_hidden_state
    torch.testing.assert_close(path_states(model, INPUTS).sum(0), states, rtol=1e-4, atol=1e-4)


def test_the_path_through_no_head_is_the_embedding():
    model = bare()
    embedded = model.bert.embeddings(**INPUTS)
    torch.testing.assert_close(path_states(model, INPUTS)[0], embedded)


def test_paths_through_one_head_are_every_head_of_every_layer_on_the_embedding():
    model = bare(layers=2)
    embedded, expected = model.bert.embeddings(**INPUTS), 0
    model.set_attn_implementation("eager")
    attentions = model(**INPUTS, output_attentions=True).attentions
    for layer, a in zip(model.bert.encoder.layer, attentions, strict=True):
        values = layer.attention.self.value(embedded).view(2, 6, 2, 8).transpose(1, 2)
        expected = expected + layer.attention.output.dense((a @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(path_states(model, INPUTS)[1], expected, rtol=1e-4, atol=1e-5)


def test_a_vit_is_refused():
    with pytest.raises(ValueError, match="expected a BERT; got BidirViT"):
        bare_attention(vit())


def test_sorted_symbols_are_in_order_and_the_same():
    tokens, labels = sorting(20)
    assert labels.tolist() == [sorted(row) for row in tokens.tolist()]
    assert sorting(20)[0].equal(tokens)
    assert not sorting(20, seed=1)[0].equal(tokens)


def test_corners_of_the_hull_are_what_no_line_through_two_others_can_cut_off():
    tokens, labels = convex_hull(30)
    for row, marks in zip(tokens.tolist(), labels.tolist(), strict=True):
        points = [divmod(token, GRID) for token in row]
        assert len(set(points)) == len(points)
        assert sum(marks) >= 3
        corners = [p for p, mark in zip(points, marks, strict=True) if mark]
        for point, mark in zip(points, marks, strict=True):
            others = [p for p in corners if p != point]
            assert mark != inside(point, others)


def inside(point, corners):
    """Whether a point lies in the hull of others: no direction has it strictly ahead of all of them."""
    angles = torch.arange(0, 2 * torch.pi, 0.001, dtype=torch.float64)
    directions = torch.stack([angles.cos(), angles.sin()])
    ahead = torch.tensor(point, dtype=torch.float64) @ directions
    return not bool((ahead > (torch.tensor(corners, dtype=torch.float64) @ directions).amax(0) + 1e-6).any())


def test_remembered_classes_are_random_and_stay_the_same():
    tokens, labels = memorization(200)
    assert labels.float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert memorization(200)[1].equal(labels)
    assert tokens.max() < GRID * GRID


def test_points_on_the_circle_are_opposite_and_change_places():
    points = circle(100)
    assert points.shape == (101, 2, 2)
    torch.testing.assert_close(points[:, 0], -points[:, 1])
    torch.testing.assert_close(points.norm(dim=-1), torch.full((101, 2), RADIUS))
    torch.testing.assert_close(points[0], points[-1].flip(0), atol=1e-6, rtol=0)
    assert points[1, 0, 1] > 0  # counter-clockwise
