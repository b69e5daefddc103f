"""Orientation that lasts: recorded in the config, saved with the weights, and void once a weight has changed."""

import re
import warnings
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from hf_bidir import BidirBertForSequenceClassification
from hf_bidir.cli import app
from hf_bidir.explain import explain, load_checkpoint, orient_heads, oriented_towards
from hf_bidir.finetune.arguments import RunArguments
from hf_bidir.finetune.trainer import SignedTrainer
from tests.explain.conftest import bert, sentences, tokenizer

NAMES = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}


@pytest.fixture
def oriented():
    model = bert(**NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # heads of mixed signs
        orient_heads(model, [sentences()], "positive", progress=False)
    return model


def test_a_new_model_is_not_oriented():
    assert oriented_towards(bert(**NAMES)) is None


def test_an_orientation_is_saved_with_the_weights(oriented, tmp_path):
    oriented.save_pretrained(tmp_path)
    loaded = BidirBertForSequenceClassification.from_pretrained(tmp_path)
    assert oriented_towards(loaded) == oriented_towards(oriented) == "positive"


def test_a_changed_weight_voids_it(oriented):
    with torch.no_grad():
        oriented.classifier.bias[0] += 1e-6
    assert oriented_towards(oriented) is None


def test_another_precision_voids_it(oriented):
    assert oriented_towards(oriented.to(torch.bfloat16)) is None


def test_training_clears_it(oriented, tmp_path):
    rows = [{"input_ids": [5, 6, 7], "labels": 1}] * 4
    args = RunArguments(
        output_dir=tmp_path,
        max_steps=1,
        eval_strategy="no",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        learning_rate=1e-3,
    )
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
