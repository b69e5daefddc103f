"""Alignment scores between queries and keys, one module per formula.

Each maps queries `[batch, queries, query_size]` and keys `[batch, keys, key_size]` to scores `[batch, queries, keys]`,
which an attention activation turns into coefficients. The last three use no query and return one row of scores.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ContentScore(nn.Module):
    """The cosine of the angle between query and key, in [-1, 1] (Graves, Wayne, Danihelka 2014, equation 6)."""

    def __init__(self, query_size: int, key_size: int, **_):
        super().__init__()
        _check_equal_sizes("content", query_size, key_size)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return F.normalize(query, dim=-1) @ F.normalize(keys, dim=-1).transpose(1, 2)


class AdditiveScore(nn.Module):
    """`v · tanh(W_1 s + W_2 h)` (Bahdanau, Cho, Bengio 2015; "concat" of Luong et al. 2015)."""

    def __init__(self, query_size: int, key_size: int, attention_size: int, **_):
        super().__init__()
        self.query = nn.Linear(query_size, attention_size)
        self.key = nn.Linear(key_size, attention_size, bias=False)
        self.score = nn.Linear(attention_size, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.score(torch.tanh(self.query(query).unsqueeze(2) + self.key(keys).unsqueeze(1))).squeeze(-1)


class LocationScore(nn.Module):
    """`W s`: one score per position, independent of the keys (Luong et al. 2015, equation 8)."""

    def __init__(self, query_size: int, key_size: int, max_length: int, **_):
        super().__init__()
        self.position = nn.Linear(query_size, max_length, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        _check_length("location", self.position.out_features, keys.shape[1])
        return self.position(query)[..., : keys.shape[1]]


class GeneralScore(nn.Module):
    """`s · W h` (Luong et al. 2015, equation 7)."""

    def __init__(self, query_size: int, key_size: int, **_):
        super().__init__()
        self.key = nn.Linear(key_size, query_size, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ self.key.weight @ keys.transpose(1, 2)  # a decoder has one query a step, and many keys


class DotScore(nn.Module):
    """`s · h` (Luong et al. 2015, equation 7)."""

    def __init__(self, query_size: int, key_size: int, **_):
        super().__init__()
        _check_equal_sizes("dot", query_size, key_size)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.transpose(1, 2)


class ScaledDotScore(DotScore):
    """`s · h / sqrt(n)` for vectors of size `n` (Vaswani et al. 2017, equation 1)."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().forward(query, keys) * keys.shape[-1] ** -0.5


class PerTokenScore(nn.Module):
    """`q_i · k_i / scale` with `q = W_q h + b_q` and `k = W_k h + b_k` (Huang, Yang, Wang 2024)."""

    def __init__(self, key_size: int, attention_size: int, scale: float, **_):
        super().__init__()
        self.query = nn.Linear(key_size, attention_size)
        self.key = nn.Linear(key_size, attention_size)
        self.scale = scale

    def forward(self, query: Tensor | None, keys: Tensor) -> Tensor:
        return (self.query(keys) * self.key(keys)).sum(-1).unsqueeze(1) / self.scale


class FeedForwardScore(nn.Module):
    """`tanh(w · h_i + b)`, in (-1, 1): the attention layer of many LSTM tutorials, with one bias."""

    def __init__(self, key_size: int, **_):
        super().__init__()
        self.score = nn.Linear(key_size, 1)

    def forward(self, query: Tensor | None, keys: Tensor) -> Tensor:
        return torch.tanh(self.score(keys)).transpose(1, 2)


class PositionalFeedForwardScore(nn.Module):
    """`tanh(w · h_i + b_i)`, in (-1, 1): that layer as published, with a bias per position, `b` `[max_length]`."""

    def __init__(self, key_size: int, max_length: int, **_):
        super().__init__()
        self.score = nn.Linear(key_size, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(max_length))

    def forward(self, query: Tensor | None, keys: Tensor) -> Tensor:
        _check_length("positional_feed_forward", len(self.bias), keys.shape[1])
        return torch.tanh(self.score(keys).transpose(1, 2) + self.bias[: keys.shape[1]])


def _check_length(name: str, longest: int, length: int) -> None:
    if length > longest:
        raise ValueError(
            f'attn_score="{name}" has {longest} positions (max_position_embeddings), and the input has {length}; '
            "truncate it, or train with a larger max_position_embeddings."
        )


def _check_equal_sizes(name: str, query_size: int, key_size: int) -> None:
    if query_size != key_size:
        raise ValueError(
            f'attn_score="{name}" needs queries and keys of the same size; got {query_size} and {key_size}. '
            'Choose "general" or "additive", which accept different sizes.'
        )


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
WITHOUT_QUERY = (PerTokenScore, FeedForwardScore, PositionalFeedForwardScore)
