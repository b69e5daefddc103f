"""Orientation of heads: consistent signs, recorded in the config until a weight changes; `hf-bidir orient`."""

import copy
import re
import warnings
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification
from typer.testing import CliRunner

from hf_bidir import BidirBertForSequenceClassification
from hf_bidir.cli import app
from hf_bidir.explain import edge_contributions, explain, flip_heads, load_checkpoint, orient_heads, oriented_towards
from hf_bidir.explain.record import record_coefficients
from hf_bidir.finetune.arguments import RunArguments
from hf_bidir.finetune.trainer import SignedTrainer
from tests.explain.conftest import NAMES, bert, sentences, tokenizer


def quietly(model, batches, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return orient_heads(model, batches, progress=False, **options)


def supports(model, inputs, target):
    """`|a|` and `u = ∂y/∂a` of every layer, by head."""
    with torch.no_grad():
        _, coefficients = record_coefficients(model, inputs)
    edges = edge_contributions(model, inputs, target)
    return [(a.abs(), torch.where(a == 0, 0, e / a)) for a, e in zip(coefficients, edges, strict=True)]


def test_orientation_does_not_depend_on_earlier_flips():
    oriented, flipped = bert(attn_activation="tanh"), bert(attn_activation="tanh")  # another odd activation
    flip_heads(flipped, torch.tensor([[True, False], [True, True], [False, True]]))
    for model in (oriented, flipped):
        quietly(model, [sentences() | {"labels": torch.tensor([0, 1])}])
    for first, second in zip(oriented.parameters(), flipped.parameters(), strict=True):
        assert torch.equal(first, second)


def test_the_share_is_the_part_of_the_effect_that_agrees_with_the_orientation():
    model, inputs = bert(), sentences()
    share = quietly(model, [inputs], target=1)
    for layer, (size, support) in enumerate(supports(model, inputs, target=1)):
        pull = size * support
        expected = pull.clamp_min(0).sum((0, 2, 3)) / pull.abs().sum((0, 2, 3))
        torch.testing.assert_close(share[layer], expected, atol=1e-4, rtol=1e-4)
    assert share.min() >= 0.5


def test_a_head_without_a_consistent_sign_is_named_in_a_warning():
    with pytest.warns(UserWarning, match=r"no consistent sign in \d of 6 heads: layer \d head \d \(0\.\d\d\)"):
        orient_heads(bert(), [sentences()], progress=False)


@pytest.mark.parametrize(
    ("model", "batches", "message"),
    [
        (lambda: bert(0.5), [sentences()], "outputs only where λ = 1 in every head"),
        (lambda: bert(attn_activation="softmax"), [sentences()], "outputs only where λ = 1 in every head"),
        (bert, [], "at least one batch"),
        (bert, sentences(), "expected a batch as a mapping"),
        (lambda: BertForSequenceClassification(BertConfig(num_hidden_layers=1)), [sentences()], "load_checkpoint"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(model, batches, message):
    with pytest.raises(ValueError, match=message):
        orient_heads(model(), batches, progress=False)


@pytest.mark.parametrize("flipped", [torch.zeros(3, 4, dtype=torch.bool), torch.zeros(3, 2)])
def test_flips_of_another_shape_or_type_are_refused_and_change_nothing(flipped):
    model = bert()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=r"expected a boolean \[layers, heads\] = \(3, 2\), got \(3, \d\)"):
        flip_heads(model, flipped)
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


@pytest.fixture
def oriented():
    model = bert(**NAMES)
    assert oriented_towards(model) is None
    quietly(model, [sentences()], target="positive")
    return model


def test_an_orientation_is_saved_with_the_weights(oriented, tmp_path):
    oriented.save_pretrained(tmp_path)
    loaded = BidirBertForSequenceClassification.from_pretrained(tmp_path)
    assert oriented_towards(loaded) == oriented_towards(oriented) == "positive"


def test_a_changed_weight_or_another_precision_voids_it(oriented):
    assert oriented_towards(copy.deepcopy(oriented).to(torch.bfloat16)) is None
    with torch.no_grad():
        oriented.classifier.bias[0] += 1e-6
    assert oriented_towards(oriented) is None


def test_training_clears_it(oriented, tmp_path):
    rows = [{"input_ids": [5, 6, 7], "labels": 1}] * 4
    never = {"eval_strategy": "no", "save_strategy": "no", "report_to": []}
    args = RunArguments(output_dir=tmp_path, max_steps=1, use_cpu=True, learning_rate=1e-3, **never)
    SignedTrainer(model=oriented, args=args, train_dataset=rows).train()
    assert oriented.config.attn_oriented is None


def test_raw_signs_say_what_they_are_oriented_towards_or_warn(oriented):
    found = explain(oriented, tokenizer(), "a good film", "signed-attention")
    assert "on average, a positive coefficient supports positive" in found.notes[0]
    raw = explain(bert(**NAMES), tokenizer(), "a good film", "signed-attention")
    assert "the sign of each head is arbitrary" in raw.notes[0]
    assert explain(oriented, tokenizer(), "a good film", "contributions").notes == []


def test_a_checkpoint_is_not_replaced_by_its_oriented_copy(checkpoint, tmp_path):
    words = ["orient", checkpoint, Path(checkpoint).parent, "--data", tmp_path / "train.csv", "--overwrite"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert (result.exit_code, "expected an output folder without the source" in result.output) == (2, True)
    assert (Path(checkpoint) / "model.safetensors").is_file()


def test_the_command_writes_an_oriented_copy_with_the_same_outputs(checkpoint, tmp_path):
    pd.DataFrame({"text": ["a good film", "bad bad", "a unbelievably bad film", None]}).to_csv(tmp_path / "train.csv")
    words = ["orient", checkpoint, tmp_path / "out", "--data", tmp_path / "train.csv", "--target", "positive"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert re.search(r"\d of 6 heads have a consistent sign", result.output)
    (model, _), (source, _) = load_checkpoint(tmp_path / "out"), load_checkpoint(checkpoint)
    assert oriented_towards(model) == "positive"
    torch.testing.assert_close(model(**sentences()).logits, source(**sentences()).logits)
    again = CliRunner().invoke(app, [str(word) for word in words])
    assert (again.exit_code, "is not empty" in again.output) == (2, True)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ({"text": ["good"]}, ("--target", "postive"), 'Did you mean "positive"'),
        ({"text": [None, ""]}, (), "all rows are empty"),
        ({"words": ["good"]}, (), "no column text"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(rows, options, message, checkpoint, tmp_path):
    pd.DataFrame(rows).to_csv(tmp_path / "train.csv", index=False)
    words = ["orient", str(checkpoint), str(tmp_path / "out"), "--data", str(tmp_path / "train.csv"), *options]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert not (tmp_path / "out").exists()
