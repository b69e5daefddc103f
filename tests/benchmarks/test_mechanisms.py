"""benchmarks/mechanisms.py: a figure shows the coefficients, and whether the generated text is correct."""

import importlib
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from hf_bidir import BidirRnnConfig, BidirRnnForSeq2SeqLM
from hf_bidir.finetune.data.tokenizer import train_words

SPECIAL = {"decoder_start_token_id": 2, "bos_token_id": 2, "eos_token_id": 3}


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("mechanisms")


@pytest.fixture
def run(benchmark, tmp_path):
    tokenizer = train_words([benchmark.DAY], vocab_size=40, max_length=32, unit="character", ends=True)
    sizes = {"vocab_size": len(tokenizer), "embedding_size": 8, "hidden_size": 8, "max_position_embeddings": 32}
    torch.manual_seed(0)
    options = {"encoder": "gru", "attn_score": "general", "decoder_style": "luong"}
    model = BidirRnnForSeq2SeqLM(BidirRnnConfig(**sizes, **options, **SPECIAL))
    model.generation_config.max_length = 6
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(("name", "panels"), [("dot", 1), ("general", 2)])
def test_the_figure_of_an_untrained_decoder_says_that_its_text_is_wrong(benchmark, run, monkeypatch, name, panels):
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    benchmark.draw(name, run, run / "figure.png")
    assert "(wrong; correct: 1998-03-05)" in saved[0].get_supxlabel().replace("\n", " ")
    assert len([axes for axes in saved[0].axes if axes.images]) == panels
