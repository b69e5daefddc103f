"""Alignment scores between queries and keys, one module per formula.

Each maps queries `[batch, queries, size]` and keys `[batch, keys, size]` to scores `[batch, queries, keys]`, which an
attention activation turns into coefficients. The last three use no query and return one row of scores.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig


class DotScore(nn.Module):
    """`s · h` (Luong et al. 2015, equation 7)."""

    def __init__(self, size: int, config: PretrainedConfig):
        super().__init__()

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.mT


class ScaledDotScore(DotScore):
    """`s · h / sqrt(n)` for vectors of size `n` (Vaswani et al. 2017, equation 1)."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().forward(query, keys) * keys.shape[-1] ** -0.5


class ContentScore(DotScore):
    """The cosine of the angle between query and key, in [-1, 1] (Graves, Wayne, Danihelka 2014, equation 6)."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().forward(F.normalize(query, dim=-1), F.normalize(keys, dim=-1))


class GeneralScore(nn.Module):
    """`s · W h` (Luong et al. 2015, equation 7)."""

    def __init__(self, size: int, config: PretrainedConfig):
        super().__init__()
        self.key = nn.Linear(size, size, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ self.key.weight @ keys.mT  # a decoder has one query a step, and many keys


class AdditiveScore(nn.Module):
    """`v · tanh(W_1 s + W_2 h)` (Bahdanau, Cho, Bengio 2015; "concat" of Luong et al. 2015)."""

    def __init__(self, size: int, config: PretrainedConfig):
        super().__init__()
        self.query = nn.Linear(size, config.hidden_size)
        self.key = nn.Linear(size, config.hidden_size, bias=False)
        self.score = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        pairs = self.query(query).unsqueeze(2) + self.key(keys).unsqueeze(1)
        return self.score(torch.tanh(pairs)).squeeze(-1)


class LocationScore(nn.Module):
    """`W s`: one score per position, independent of the keys (Luong et al. 2015, equation 8)."""

    def __init__(self, size: int, config: PretrainedConfig):
        super().__init__()
        self.position = nn.Linear(size, config.max_position_embeddings, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return first_positions(self.position(query), keys)


class PerTokenScore(nn.Module):
    """`q_i · k_i / scale` with `q = W_q h + b_q` and `k = W_k h + b_k` (Huang, Yang, Wang 2024)."""

    def __init__(self, size: int, config: PretrainedConfig):
        super().__init__()
        self.query = nn.Linear(size, config.hidden_size)
        self.key = nn.Linear(size, config.hidden_size)
        self.scale = config.attn_scale

    def forward(self, query: Tensor | None, keys: Tensor) -> Tensor:
        products = self.query(keys) * self.key(keys)
        return products.sum(-1).unsqueeze(1) / self.scale


class FeedForwardScore(nn.Module):
    """`tanh(w · h_i + b)`, in (-1, 1): the attention layer of many LSTM tutorials, with one bias."""

    def __init__(self, size: int, config: PretrainedConfig):
        super().__init__()
        self.score = nn.Linear(size, 1)

    def forward(self, query: Tensor | None, keys: Tensor) -> Tensor:
        return torch.tanh(self.score(keys)).mT


class PositionalFeedForwardScore(nn.Module):
    """`tanh(w · h_i + b_i)`, in (-1, 1): that layer as published, with a bias per position, `b` `[max_length]`."""

    def __init__(self, size: int, config: PretrainedConfig):
        super().__init__()
        self.score = nn.Linear(size, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.max_position_embeddings))

    def forward(self, query: Tensor | None, keys: Tensor) -> Tensor:
        return torch.tanh(self.score(keys).mT + first_positions(self.bias, keys))


def first_positions(scores: Tensor, keys: Tensor) -> Tensor:
    """The scores `[..., positions]` of the positions that the keys have; ValueError if they have more."""
    positions, length = scores.shape[-1], keys.shape[1]
    if length > positions:
        raise ValueError(
            f"this attn_score has {positions} positions (max_position_embeddings), and the input has {length}; "
            "truncate it, or train with a larger max_position_embeddings."
        )
    return scores[..., :length]


SCORES: dict[str, type[nn.Module]] = {
    "content": ContentScore,
    "additive": AdditiveScore,
    "location": LocationScore,
    "general": GeneralScore,
    "dot": DotScore,
    "scaled_dot": ScaledDotScore,
    "per_token": PerTokenScore,
    "feed_forward": FeedForwardScore,
    "positional_feed_forward": PositionalFeedForwardScore,
}
