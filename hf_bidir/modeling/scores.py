"""Alignment scores: what attention activations turn into coefficients, one module per formula.

Each is made for states of a size, and maps states `[batch, keys, size]` to scores `[batch, queries, keys]`. These have
no query from outside: every position scores itself, and there is one query.
"""

import torch
from torch import Tensor, nn


class PerTokenScore(nn.Module):
    """`q_i · k_i / scale` with `q = W_q h + b_q` and `k = W_k h + b_k` (Huang, Yang, Wang 2024)."""

    def __init__(self, size: int, attention_size: int, scale: float):
        super().__init__()
        self.query = nn.Linear(size, attention_size)
        self.key = nn.Linear(size, attention_size)
        self.scale = scale

    def forward(self, states: Tensor) -> Tensor:
        return (self.query(states) * self.key(states)).sum(-1).unsqueeze(1) / self.scale


class FeedForwardScore(nn.Module):
    """`tanh(w · h_i + b)`, in (-1, 1): the layer that many LSTM tutorials call attention."""

    def __init__(self, size: int, attention_size: int, scale: float):
        super().__init__()
        self.score = nn.Linear(size, 1)

    def forward(self, states: Tensor) -> Tensor:
        return torch.tanh(self.score(states)).transpose(1, 2)


SCORES = {"per_token": PerTokenScore, "feed_forward": FeedForwardScore}
