"""The files of a Space import each other as neighbours, as on the Hub; tests share one running Space."""

import sys
from pathlib import Path

import pytest
import torch

from hf_bidir import BidirBertForSequenceClassification
from hf_bidir.finetune.data.tokenizer import train_wordpiece

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "space"))
ACTIVATIONS = ("tanhmax", "softmax")
DIGITS, FILMS = ([f"{ROOT}/model_cards/{name}-{kind}" for kind in ACTIVATIONS] for name in ("digits", "sst2-rnn"))
SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16,
    "max_position_embeddings": 64, "initializer_range": 0.4,
}  # fmt: skip


def save_pair(folder, tokenizer, head):
    """A small checkpoint of each activation, counterparts by name."""
    pair = []
    for activation in ACTIVATIONS:
        torch.manual_seed(0)
        config = head.config_class(vocab_size=len(tokenizer), attn_activation=activation, **SHAPE)
        pair.append(f"{folder}/words-{activation}")
        for part in (head(config), tokenizer):
            part.save_pretrained(pair[-1])
    return pair


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    from models import SENTENCES

    tokenizer = train_wordpiece([*SENTENCES, "< b > bold img src x onerror"], vocab_size=120, max_length=64)
    return save_pair(tmp_path_factory.mktemp("texts"), tokenizer, BidirBertForSequenceClassification)


@pytest.fixture(scope="session")
def blocks(texts):
    """The page with the committed digits and film checkpoints and small text ones."""
    from page import page

    return page([*DIGITS, *FILMS, *texts])


@pytest.fixture(scope="session")
def address(blocks):
    """The URL of the page."""
    from page import LAUNCH

    yield blocks.launch(prevent_thread_lock=True, quiet=True, **LAUNCH)[1]
    blocks.close()
