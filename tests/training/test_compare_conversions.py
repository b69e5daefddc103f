"""The comparison's table, its picture, and what it measures of one checkpoint."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import BertTokenizer

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.cli.recipe import read_recipe
from hf_bidir.finetune.tasks.text_classification import text_classification
from training.compare_conversions import VARIANTS, draw, finished_runs, sign_numbers, table

RECIPES = Path(__file__).parents[2] / "training/recipes"


def run(accuracy, without):
    return {
        "test_accuracy": accuracy,
        "test_accuracy_without_negatives": without,
        "negative_share": 0.25,
        "negative_mass": [1.0, 1.0, 1.0],
        "curve": [[1.0, 0.7], [2.0, accuracy]],
        "hardware": {"cpu": "some CPU"},
        "versions": {"torch": "2", "transformers": "5"},
    }


def test_the_table_has_mean_and_standard_deviation_and_what_negatives_are_worth():
    lines = table({"softmax": [run(0.9, 0.9)], "healed": [run(0.88, 0.8), run(0.9, 0.84)]}).splitlines()
    row = next(line for line in lines if line.startswith("| healed"))
    assert [cell.strip() for cell in row.split("|")][3:8] == ["2", "89.0 ± 1.4", "1", "25 %", "7.0"]


def test_the_picture_is_drawn_of_whatever_is_finished(tmp_path):
    draw({"healed": [run(0.9, 0.9)], "log": [run(0.9, 0.9)]}, tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_variants_without_a_finished_run_are_left_out(tmp_path):
    (tmp_path / "log-seed0.json").write_text("{}")
    assert list(finished_runs(tmp_path)) == ["log"]


def test_the_signs_of_a_checkpoint_are_counted_and_left_out(tmp_path):
    words = [f"w{index}" for index in range(20)]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BidirBertConfig(**shape, vocab_size=25, initializer_range=1.0)
    BidirBertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "model")
    texts = [" ".join(words[index : index + 5]) for index in range(12)]
    Dataset.from_dict({"text": texts, "label": [0, 1] * 6}).to_parquet(str(tmp_path / "test.parquet"))
    numbers = sign_numbers(tmp_path / "model", tmp_path / "test.parquet")
    assert 0 < numbers["negative_share"] < 1
    assert numbers["negative_mass"] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_is_a_recipe_and_options_that_the_script_knows(variant):
    recipe = read_recipe(text_classification.options, RECIPES / f"{variant.recipe}.yaml")
    text_classification.read(recipe | variant.options | {"output_dir": "unused"})
