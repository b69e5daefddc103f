"""Attention over the states of an encoder with one query."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .activations import activated, attention_changes

from .configuration_bidir_rnn import SCORES_ALONE, BidirRnnConfig
from .scores import SCORES


class Attended(NamedTuple):
    """What attention returns."""

    context: Tensor  # [batch, size]
    coefficients: Tensor | None  # [batch, 1, 1, keys]; None without attention


class BidirAlignment(nn.Module):
    """Attention with one query over encoder states, both of this size: score, coefficients, context.

    The query is a state of a decoder, or in a classifier a learned vector. Some scores have no query.
    """

    changes = attention_changes  # of running calls, by layer

    def __init__(self, config: BidirRnnConfig, size: int):
        super().__init__()
        self.config = config
        self.signed_index = 0  # its place among the signed layers of the model
        self.score = SCORES[config.attn_score](size, config)
        self.query = None
        if config.decoder_style is None and config.attn_score not in SCORES_ALONE:
            self.query = nn.Parameter(torch.empty(size))
        self.value: nn.Module = nn.Identity()
        self.output_size = size
        if config.attn_score == "per_token":
            self.value = nn.Linear(size, config.hidden_size)
            self.output_size = config.hidden_size
        if config.attn_scope == "local-p":
            hidden, place = nn.Linear(size, size, bias=False), nn.Linear(size, 1, bias=False)
            self.place = nn.Sequential(hidden, nn.Tanh(), place)

    def forward(self, states: Tensor, keep: Tensor, query: Tensor | None = None, step: int = 0) -> Attended:
        """Attend as the config says; coefficients are 0 for keys not kept.

        Args:
            states, keep: `[batch, keys, size]`, and boolean `[batch, keys]`.
            query: `[batch, 1, size]`, of a decoder.
            step: index of the decoder step, from 0; the centre for "local-m".
        """
        if self.query is not None:
            query = self.query.expand(len(states), 1, -1)
        scores = self.score(query, states).unsqueeze(1)
        keep, weight = self._local(query, keep[:, None, None], step)
        change = None if torch.compiler.is_compiling() else self.changes.get().get(self)
        is_softmax = change is not None and change.softmax
        activation = "softmax" if is_softmax else self.config.attn_activation
        coefficients = weight * activated(scores, keep, activation, self.config.attn_negative_mass)
        if change is not None:
            coefficients = change.edited(coefficients)
        values = self.value(states).unsqueeze(1)
        return Attended((coefficients @ values).flatten(1), coefficients)

    def _local(self, query: Any, keep: Tensor, step: int) -> tuple[Tensor, Tensor | float]:
        """The keys in the window, and factors on their coefficients (Luong et al. 2015, section 3.2)."""
        window = self.config.attn_window
        weight: Tensor | float = 1.0
        if not window:
            return keep, weight
        positions = torch.arange(keep.shape[-1], device=keep.device)
        if self.config.attn_scope == "local-m":
            distance = positions - step
        else:
            share = torch.sigmoid(self.place(query)).unsqueeze(1)
            length = keep.sum(-1, keepdim=True)
            distance = positions - length * share
            weight = torch.exp(-2 * (distance / window).square())  # the standard deviation is half the window
        return keep & (distance.abs() <= window), weight
