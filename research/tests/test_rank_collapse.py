"""Rank collapse: the residual by its definition, the full stack equals the model, paths add up, tasks are right."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_bidir import BidirBertConfig, BidirBertForTokenClassification, BidirBertModel
from hf_bidir.common.errors import InputError
from research.rank_collapse import (
    STACKS,
    bare_attention,
    layer_states,
    path_states,
    relative_residual,
    stable_rank,
)
from research.rank_collapse.__main__ import main
from research.rank_collapse.report import mean_and_interval
from research.rank_collapse.trained_paths import GRID, _corners, convex_hull
from research.tests.faithfulness.conftest import texts
from tests.explain.conftest import bert, images, pooling, sentences, tokenizer, vit


def layer_residuals(model, inputs, stack):
    return relative_residual(*layer_states(model, inputs, stack))


CASES = {"bert": (bert, sentences), "vit": (vit, images)}
every_model = pytest.mark.parametrize("kind", CASES)


def deep(activation, **options):
    torch.manual_seed(0)
    config = BidirBertConfig(
        vocab_size=100, hidden_size=64, num_attention_heads=4, intermediate_size=64, attn_activation=activation,
        **{"num_hidden_layers": 6} | options,
    )  # fmt: skip
    return BidirBertModel(config).eval().double(), {"input_ids": torch.arange(24).view(2, 12)}


@given(st.integers(0, 1000))
def test_the_residual_is_its_definition_written_out(seed):
    matrix = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def norm(rows):
        columns = max(sum(abs(row[j]) for row in rows) for j in range(3))
        return (columns * max(sum(abs(x) for x in row) for row in rows)) ** 0.5

    mean = [sum(row[j] for row in matrix.tolist()) / 4 for j in range(3)]
    rest = [[x - m for x, m in zip(row, mean, strict=True)] for row in matrix.tolist()]
    assert relative_residual(matrix).item() == pytest.approx(norm(rest) / norm(matrix.tolist()))


def test_equal_tokens_have_no_residual_and_padding_does_not_count():
    states = torch.randn(1, 3).repeat(4, 1)
    assert relative_residual(states) < 1e-6
    states = torch.randn(5, 3)
    keep = torch.tensor([1, 1, 1, 0, 0]).bool()
    torch.testing.assert_close(relative_residual(states, keep), relative_residual(states[:3]))


@every_model
def test_with_both_parts_the_stack_is_the_model(kind):
    model, inputs = CASES[kind][0](), CASES[kind][1]()
    hidden = model(**inputs, output_hidden_states=True).hidden_states
    keep = inputs.get("attention_mask", torch.ones(hidden[0].shape[:2])).bool()
    expected = torch.stack([relative_residual(states, keep) for states in hidden]).detach()
    found = layer_residuals(model, inputs, STACKS["with both"])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_stable_rank_counts_directions():
    directions = torch.linalg.qr(torch.randn(8, 8))[0][:3]
    around = torch.cat([directions, -directions]) + torch.randn(8)
    torch.testing.assert_close(stable_rank(around), torch.tensor(3.0))
    keep = torch.tensor([1, 1, 1, 1, 1, 1, 0]).bool()
    torch.testing.assert_close(stable_rank(torch.cat([around, torch.randn(1, 8)]), keep), torch.tensor(3.0))


def test_softmax_collapses_and_skip_connections_or_tanhmax_stop_it():
    model, inputs = deep("softmax")
    alone = layer_residuals(model, inputs, STACKS["attention only"]).mean(1)
    assert alone[-1] < 1e-3 * alone[0]
    assert layer_residuals(model, inputs, STACKS["with skip connections"]).mean(1)[-1] > 0.1 * alone[0]
    model, inputs = deep("tanhmax")
    alone = layer_residuals(model, inputs, STACKS["attention only"]).mean(1)
    assert alone[-1] > 0.5 * alone[0]


def test_a_model_without_known_layers_is_refused():
    with pytest.raises(ValueError, match=r"expected a BERT, ViT or DeiT; got BidirRnnForSequenceClassification"):
        layer_residuals(pooling(), texts(), STACKS["with both"])


def test_the_command_measures_a_checkpoint_and_draws_it(tmp_path, capsys):
    bert().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("a good film\nan unbelievably good film !\n")
    words = [str(tmp_path / "model"), "--output", str(tmp_path / "picture.png")]
    main([*words, "--texts", str(tmp_path / "texts.txt")])
    output = capsys.readouterr().out
    assert (tmp_path / "picture.png").stat().st_size > 1000
    inputs = tokenizer()(["a good film", "an unbelievably good film !"], padding=True, return_tensors="pt")
    alone = layer_residuals(bert().double(), dict(inputs), STACKS["attention only"]).mean(1)
    rows = [line.split() for line in output.splitlines()[1:5]]
    assert [float(row[1]) for row in rows] == pytest.approx(alone.tolist(), rel=0.06)
    main(words)
    assert "Saved: " in capsys.readouterr().out
    (tmp_path / "texts.txt").write_text("\n\n")
    with pytest.raises(InputError, match="expected one text per line"):
        main([*words, "--texts", str(tmp_path / "texts.txt")])


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


def test_paths_through_one_head_are_every_head_of_every_layer_on_the_embedding():
    model = bare(layers=2)
    embedded, expected = model.bert.embeddings(**INPUTS), 0
    model.set_attn_implementation("eager")
    attentions = model(**INPUTS, output_attentions=True).attentions
    for layer, a in zip(model.bert.encoder.layer, attentions, strict=True):
        values = layer.attention.self.value(embedded).view(2, 6, 2, 8).transpose(1, 2)
        expected = expected + layer.attention.output.dense((a @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(path_states(model, INPUTS)[1], expected, rtol=1e-4, atol=1e-5)


def test_the_mean_residual_is_geometric_and_lies_in_its_interval():
    mean, low, high = mean_and_interval([1e-2, 1e-4, 1e-3])
    assert mean == pytest.approx(1e-3)
    assert low < mean < high
    assert low * high == pytest.approx(mean**2)  # symmetrical on a logarithmic scale


def test_corners_of_the_hull_are_those_of_a_square_around_other_points():
    points = [(0, 0), (4, 3), (0, 9), (5, 5), (9, 0), (9, 9), (0, 4)]  # the last one lies on a side
    corners = _corners(np.array([GRID * row + column for row, column in points]))
    assert sorted(corners.tolist()) == [0, 2, 4, 5]
    assert _corners(np.array([0, 11, 22, 33])) is None  # on one line
    tokens, labels = convex_hull(20)
    assert (labels.sum(1) >= 3).all()
    assert all(len(set(row)) == len(row) for row in tokens.tolist())
