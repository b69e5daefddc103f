"""The published checkpoints: what `make checkpoints` writes, and what is committed of it."""

from argparse import Namespace
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import mean

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModel, BertConfig

from hf_bidir import signed
from hf_bidir.checkpoints.adapters import read_adapter
from hf_bidir.common.card import read_card
from hf_bidir.hub import evaluate_checkpoint
from hf_bidir.hub.card import card_differences
from hf_bidir.hub.results import read_results
from tests.training.checkpoints_of_others import checkpoint_of
from tests.training.conftest import few_digits, read
from training import checkpoints
from training.checkpoints import CARDS, PAIRS, Pair

BRIEF = {"max_steps": 2, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
NAMES = ("digits-tanhmax", "digits-softmax")
OPTIONS = Namespace(data_dir=None, minilm=None, dinov2=None)
COMMITTED = sorted(file.parent for file in CARDS.glob("*/README.md"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where runs and cards are written."""
    place = tmp_path_factory.mktemp("checkpoints")
    with pytest.MonkeyPatch.context() as patch:
        write_to(place, patch)
        yield place


def write_to(place, patch):
    patch.setattr(checkpoints, "RUNS", place / "runs")
    patch.setattr(checkpoints, "CARDS", place / "model_cards")


@pytest.fixture(scope="module")
def made(place):
    """A pair trained for two steps with two seeds, its runs and its cards."""
    pair = Pair("digits", "image_classification", options=dict.fromkeys(NAMES, BRIEF), seeds=2)
    with few_digits():
        checkpoints.make(pair, OPTIONS)
    return place / "runs", place / "model_cards"


def test_every_card_agrees_with_its_numbers_and_lies_beside_small_weights_and_the_code_that_loads_them(made):
    files = {file.name for file in (made[1] / "digits-tanhmax").iterdir()}
    assert {"model.safetensors", "preprocessor_config.json", "explanation.png", "modeling_bidir.py"} <= files
    for name in NAMES:
        assert card_differences(made[1] / name) == []
        assert "Verified: `hf-bidir evaluate` measured the same numbers" in (made[1] / name / "README.md").read_text()


def test_a_card_has_the_seeds_of_the_checkpoint_and_of_its_softmax_counterpart(made):
    runs, cards = made
    seeds = read(cards / "digits-tanhmax/seeds.json")
    for column, name in zip(("this", "counterpart"), NAMES, strict=True):
        folders = (runs / name, runs / f"seeds/{name}-seed1")
        accuracy = [read(folder / "evaluation.json")["scores"]["accuracy"] for folder in folders]
        assert (seeds[column]["name"], seeds[column]["scores"]["accuracy"]) == (name, accuracy)
    assert read(runs / "seeds/digits-tanhmax-seed1/run.json")["seed"] == 1
    means = {name: f"{mean(seeds[name]['scores']['accuracy']):.4f} ± " for name in ("this", "counterpart")}
    card = (cards / "digits-tanhmax/README.md").read_text(encoding="utf-8")
    assert f"**Accuracy {means['this']}" in card
    assert f" against digits-softmax** ({means['counterpart']}" in card
    assert "mean and standard deviation of 2 seeds" in card
    assert "```bash\npython -m training.checkpoints digits\n```" in card


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_a_committed_card_matches_its_files(folder, tmp_path):
    adapter, base = read_adapter(folder), None
    if adapter and not Path(adapter.place).is_dir():  # all-MiniLM-L6-v2, of which a card needs the config
        base = tmp_path
        BertConfig(num_hidden_layers=6, hidden_size=384, intermediate_size=1536).save_pretrained(base)
    assert card_differences(folder, base=base) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_checkpoint_has_the_score_of_its_card(name):
    claimed = read_results(CARDS / name).overall
    assert "accuracy" in claimed
    measured = evaluate_checkpoint(CARDS / name).scores
    assert {metric: measured[metric] for metric in claimed} == pytest.approx(claimed, abs=0.003)  # one digit of 360


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cifar10-dinov2-softmax", "dinov2"),
        ("sst2-minilm-softmax", "minilm"),
        ("sst2-minilm-tanhmax", "model_cards/minilm-tanhmax"),
    ],
)
def test_a_checkpoint_starts_from_the_folder_of_its_own_pretrained_model(name, expected, monkeypatch):
    recipes, pair = [], PAIRS[name.rpartition("-")[0]]
    monkeypatch.setattr(import_module(f"training.{pair.script}"), "main", recipes.append)
    checkpoints.train(name, pair, 0, Namespace(data_dir=None, minilm="minilm", dinov2="dinov2"))
    assert recipes[0]["model_name_or_path"] == expected


def test_a_checkpoint_in_half_precision_has_the_scores_of_its_file(tmp_path, monkeypatch):
    write_to(tmp_path, monkeypatch)
    pair = Pair("digits", "image_classification", options=dict.fromkeys(NAMES, BRIEF), seeds=1, half=True)
    with few_digits():
        checkpoints.make(pair, OPTIONS)
    folder = tmp_path / "model_cards/digits-tanhmax"
    assert load_file(folder / "model.safetensors")["classifier.weight"].dtype == torch.float16
    measured = read(folder / "evaluation.json")["scores"]["accuracy"]
    assert f"| accuracy | {measured:.4f} |" in (folder / "README.md").read_text(encoding="utf-8")


def test_a_pair_of_adapters_is_published_with_bases_that_others_find(tmp_path, monkeypatch):
    write_to(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    cards, words = tmp_path / "model_cards", checkpoints.SENTENCE.split()
    (tmp_path / "sst2").mkdir()
    for split in ("train", "validation", "test"):
        rows = {"text": [f"{words[row % 5]} {words[row % 7]}" for row in range(120)], "label": [0, 1] * 60}
        Dataset.from_dict(rows).to_parquet(str(tmp_path / f"sst2/{split}.parquet"))
    minilm = checkpoint_of("Roberta", tmp_path / "minilm", words=checkpoints.SENTENCE)
    checkpoint_of("Roberta", cards / "minilm-tanhmax", words=checkpoints.SENTENCE)
    signed(AutoModel.from_pretrained(cards / "minilm-tanhmax")).save_pretrained(cards / "minilm-tanhmax")
    pair = PAIRS["sst2-minilm"]
    pair = replace(pair, seeds=1, options=dict.fromkeys(pair.checkpoints, BRIEF | {"use_cpu": True}))
    checkpoints.make(pair, Namespace(data_dir=tmp_path, minilm=minilm, dinov2=None))
    bases = {"tanhmax": "model_cards/minilm-tanhmax", "softmax": "sentence-transformers/all-MiniLM-L6-v2"}
    for name, base in bases.items():
        folder = cards / f"sst2-minilm-{name}"
        assert read(folder / "adapter_config.json")["base_model_name_or_path"] == base
        assert "Verified: `hf-bidir evaluate`" in (folder / "README.md").read_text(encoding="utf-8")
    softmax, tanhmax = (read_card(cards / f"sst2-minilm-{name}/README.md") for name in ("softmax", "tanhmax"))
    assert 'base = "sentence-transformers/all-MiniLM-L6-v2"' in softmax.text
    assert "trust_remote_code" not in softmax.text
    assert 'base = "../minilm-tanhmax"' in tanhmax.text
    assert tanhmax.data.base_model == "hf-bidir/minilm-tanhmax"
