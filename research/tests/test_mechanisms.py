"""Mechanisms: synthetic pairs with right targets and new test days, images as texts, figures."""

from dataclasses import replace
from datetime import date

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Image, Value
from matplotlib.figure import Figure

from hf_bidir import BidirRnnConfig, BidirRnnForSeq2SeqLM
from hf_bidir.cli.script import parse
from hf_bidir.finetune.data.tokenizer import train_words
from research.mechanisms import data, figures
from research.mechanisms.data import (
    FILLERS,
    FORMATS,
    DateNormalisation,
    NumberSorting,
    words_of,
    write_day,
)
from research.mechanisms.run import MECHANISMS, settings_of, trials
from research.runs import TRAINING

DATES = DateNormalisation(train=300, validation=40, test=60)


def test_the_target_is_the_source_in_order():
    for split in NumberSorting(train=50, validation=5, test=5).split().values():
        for row in split:
            numbers = [int(number) for number in row["source"].split()]
            assert len(numbers) == 8
            assert [int(number) for number in row["target"].split()] == sorted(numbers)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("the 22nd of May 2001", "2001-05-22"),
        ("Tuesday, February 29, 2000", "2000-02-29"),
        ("05.03.1998", "1998-03-05"),
        ("03/05/1998", "1998-03-05"),
        ("5-Mar-1998", "1998-03-05"),
    ],
)
def test_days_are_written_as_people_write_them(source, target):
    day = date.fromisoformat(target)
    assert source in {write_day(day, form) for form in FORMATS}


def test_no_day_is_in_two_splits():
    splits = DATES.split()
    days = [set(split["target"]) for split in splits.values()]
    assert sum(map(len, days)) == len(set.union(*days)) == 400


@pytest.mark.parametrize("pairs", [replace(DATES, length=20), NumberSorting(20, 2, 2, length=20, count=5)])
def test_sources_of_a_given_length_hide_the_same_numbers_or_dates_among_other_words(pairs):
    plain, hidden = replace(pairs, length=None).split()["test"], pairs.split()["test"]
    for short, long in zip(plain, hidden, strict=True):
        words = words_of(long["source"])
        assert len(words) == 20
        assert [word for word in words if word not in FILLERS] == words_of(short["source"])
        assert long["target"] == short["target"]


SPECIAL = {"decoder_start_token_id": 2, "bos_token_id": 2, "eos_token_id": 3}


@pytest.fixture
def run(tmp_path):
    tokenizer = train_words([figures.DAY], vocab_size=40, max_length=32, unit="character", ends=True)
    sizes = {"vocab_size": len(tokenizer), "embedding_size": 8, "hidden_size": 8, "max_position_embeddings": 32}
    torch.manual_seed(0)
    options = {"encoder": "gru", "attn_score": "general", "decoder_style": "luong"}
    model = BidirRnnForSeq2SeqLM(BidirRnnConfig(**sizes, **options, **SPECIAL))
    model.generation_config.max_length = 6
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["dot", "general"])
def test_the_figure_of_an_untrained_decoder_says_that_its_text_is_wrong(run, monkeypatch, name):
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    figures.draw_coefficients(name, run, run / "figure.png")
    assert "(wrong; correct: 1998-03-05)" in saved[0].get_supxlabel().replace("\n", " ")
    assert saved[0].axes[-1].get_ylabel() == "coefficient a"


def test_an_image_is_a_text_of_its_mean_grey_levels():
    image = np.kron([[0, 255], [51, 102]], np.ones((2, 2))).astype(np.uint8)
    features = Features({"image": Image(), "label": Value("int64")})
    (row,) = data.as_texts(Dataset.from_dict({"image": [image], "label": [0]}, features=features), side=2)
    assert row["text"] == "grey0 grey16 grey3 grey6"  # 255 is 16


def test_every_mechanism_names_options_that_its_training_script_knows():
    for trial in trials([*MECHANISMS], seeds=1):
        task, mechanism, activation = trial["task"], trial["mechanism"], trial["activation"]
        kind, settings = settings_of(task, mechanism, "softmax" if activation == "none" else activation)
        parse(TRAINING[kind].OPTIONS, settings | MECHANISMS[task][mechanism] | {"output_dir": "unused"})
