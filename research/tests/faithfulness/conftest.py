"""A small pooling model, a small BERT and a small ViT, and batches for them."""

import torch

from hf_bidir import BidirRnnConfig, BidirRnnForSequenceClassification
from tests.explain.conftest import bert, images, sentences, vit  # noqa: F401

WORDS = 20


def pooling(activation: str = "tanhmax", classes: int = 3, **options):
    torch.manual_seed(0)
    config = BidirRnnConfig(
        vocab_size=WORDS, embedding_size=6, hidden_size=4, initializer_range=1.0, num_labels=classes,
        attn_activation=activation, attn_scale=1.0, **options,
    )  # fmt: skip
    return BidirRnnForSequenceClassification(config).eval()


def texts():
    """Three texts of 7, 4 and 2 words."""
    keep = (torch.arange(7) < torch.tensor([[7], [4], [2]])).long()
    ids = torch.randint(1, WORDS, (3, 7), generator=torch.Generator().manual_seed(1)) * keep
    return {"input_ids": ids, "attention_mask": keep}
