"""The figures of research/mechanisms/run.py and its images, as texts."""

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Image, Value
from matplotlib.figure import Figure

from hf_bidir import BidirRnnConfig, BidirRnnForSeq2SeqLM
from hf_bidir.finetune.data.tokenizer import train_words
from research.mechanisms import data, figures

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


@pytest.mark.parametrize(("name", "panels"), [("dot", 1), ("general", 2)])
def test_the_figure_of_an_untrained_decoder_says_that_its_text_is_wrong(run, monkeypatch, name, panels):
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    figures.draw_coefficients(name, run, run / "figure.png")
    assert "(wrong; correct: 1998-03-05)" in saved[0].get_supxlabel().replace("\n", " ")
    assert len([axes for axes in saved[0].axes if axes.images]) == panels


def test_an_image_is_a_text_of_its_mean_grey_levels():
    image = np.kron([[0, 255], [51, 102]], np.ones((2, 2))).astype(np.uint8)
    features = Features({"image": Image(), "label": Value("int64")})
    (row,) = data.as_texts(Dataset.from_dict({"image": [image], "label": [0]}, features=features), side=2)
    assert row["text"] == "grey0 grey16 grey3 grey6"  # 255 is 16
