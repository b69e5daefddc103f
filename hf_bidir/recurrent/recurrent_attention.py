"""Attention over the states of an encoder with one query: soft (a weighted sum), or hard (a single state), which is
trained by REINFORCE (Williams 1992; Xu et al. 2015, section 4.1)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS, attention_changes, get_attn_activation
from hf_bidir.modeling.configuration_bidir import all_masses, check_layers

from .configuration_bidir_rnn import BidirRnnConfig
from .scores import SCORES, WITHOUT_QUERY, PerTokenScore

MOMENTUM = 0.9  # momentum of the REINFORCE baseline


class Attended(NamedTuple):
    """What attention returns."""

    context: Tensor  # [batch, size]
    coefficients: Tensor | None  # [batch, 1, 1, keys]; None without attention
    log_probability: Tensor | None = None  # [batch], of the selected key; None with soft attention


class BidirScoredAttention(nn.Module):
    """Base class of attention over encoder states, and with queries, of this size: score, coefficients, selection."""

    changes = attention_changes

    def __init__(self, config: BidirRnnConfig, size: int):
        super().__init__()
        self.config = config
        self.signed_index = 0  # its place among the signed layers of the model
        self.score = SCORES[config.attn_score](
            query_size=size,
            key_size=size,
            attention_size=config.hidden_size,
            scale=config.attn_scale,
            max_length=config.max_position_embeddings,
        )
        if config.attn_scope == "local-p":
            self.place = nn.Sequential(nn.Linear(size, size, bias=False), nn.Tanh(), nn.Linear(size, 1, bias=False))

    def coefficients(self, query: Tensor | None, states: Tensor, keep: Tensor, step: int = 0) -> Tensor:
        """The coefficients `[batch, 1, 1, keys]` of one query per text, as the config says; 0 for keys not kept.

        Args:
            query: `[batch, size]`; None for scores without a query.
            states, keep: `[batch, keys, size]`, and boolean `[batch, keys]`.
            step: index of the decoder step, from 0; the centre for "local-m".
        """
        queries = None if query is None else query.unsqueeze(1)
        scores = self.score(queries, states).unsqueeze(1)
        keep = keep[:, None, None]
        weight: Tensor | float = 1.0
        if self.config.attn_window is not None:
            distance = torch.arange(states.shape[1], device=states.device) - self._centre(query, keep, step)
            keep = keep & (distance.abs() <= self.config.attn_window)
            if self.config.attn_scope == "local-p":
                # the Gaussian's standard deviation is half the window
                weight = torch.exp(-2 * (distance / self.config.attn_window).square())

        def weighed(scores: Tensor, keep: Tensor, softmax: bool = False) -> Tensor:
            return weight * self._activated(scores, keep, softmax)

        change = None if torch.compiler.is_compiling() else self.changes.get().get(self)
        return weighed(scores, keep) if change is None else change.weigh(weighed, scores, keep)

    def _centre(self, query: Tensor, keep: Tensor, step: int) -> Tensor | int:
        """The position in the middle of the window (Luong et al. 2015, section 3.2)."""
        if self.config.attn_scope == "local-m":
            return step
        share = torch.sigmoid(self.place(query))
        return keep.sum(-1, keepdim=True) * share[:, None, None]

    def _activated(self, scores: Tensor, keep: Tensor, softmax: bool) -> Tensor:
        name = "softmax" if softmax else self.config.attn_activation
        activation = get_attn_activation(name)
        if name not in WITH_NEGATIVE_MASS:
            return activation(scores, keep)
        mass = self.config.attn_negative_mass
        check_layers(mass, heads=[1])
        return activation(scores, keep, negative_mass=all_masses(mass)[0])

    def select(self, coefficients: Tensor, values: Tensor) -> Attended:
        """The weighted sum of values `[batch, keys, size]`, or with hard selection one of them."""
        values = values.unsqueeze(1)
        if self.config.attn_selection == "soft":
            return Attended((coefficients @ values).flatten(1), coefficients)
        context, log_probability = select_one(coefficients, values, sample=self.training)
        return Attended(context.flatten(1), coefficients, log_probability.flatten())


class BidirAttentionPooling(BidirScoredAttention):
    """Pools a text into one vector, `Σ_i a_i v_i`, with signed coefficients `a_i` and one value per position."""

    def __init__(self, config: BidirRnnConfig, size: int):
        super().__init__(config, size)
        learned = config.attn_query == "learned" and not isinstance(self.score, WITHOUT_QUERY)
        self.query = nn.Parameter(torch.empty(size)) if learned else None
        has_values = isinstance(self.score, PerTokenScore)
        self.value = nn.Linear(size, config.hidden_size) if has_values else nn.Identity()
        self.output_size = config.hidden_size if has_values else size

    def forward(self, states: Tensor, keep: Tensor, last: Tensor | None = None) -> Attended:
        """Attend with the learned query, or with `last`, the encoder's last state `[batch, size]`."""
        query = last if self.query is None else self.query.expand(len(states), -1)
        return self.select(self.coefficients(query, states, keep), self.value(states))


class BidirAlignment(BidirScoredAttention):
    """Attention of one decoder step over the encoder states."""

    def forward(self, query: Tensor, states: Tensor, keep: Tensor, step: int) -> Attended:
        """As `BidirAttentionPooling`; the query is a state of the decoder, `[batch, size]`."""
        return self.select(self.coefficients(query, states, keep, step), states)


def select_one(coefficients: Tensor, values: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
    """Select the value of one key per query, with the sign of its coefficient.

    With `sample`, key `i` is drawn with probability `|a_i| / Σ_j |a_j|`; else it is that of largest magnitude.

    Returns:
        `sign(a_i) v_i` `[..., queries, size]`, from coefficients `[..., queries, keys]` and values `[..., keys, size]`,
        and the log-probability of `i` `[..., queries]`; both are 0 for a query whose coefficients are all 0.
    """
    magnitude = coefficients.abs()
    total = magnitude.sum(-1, keepdim=True)
    empty = total == 0
    uniform = 1.0 / magnitude.shape[-1]
    probability = torch.where(empty, uniform, magnitude / total.masked_fill(empty, 1.0))
    if sample:
        rows = probability.detach().flatten(0, -2)
        index = torch.multinomial(rows, 1).view_as(total)
    else:
        index = magnitude.argmax(-1, keepdim=True)
    selected = values.gather(-2, index.expand(*total.shape[:-1], values.shape[-1]))
    context = coefficients.gather(-1, index).sign() * selected
    smallest = torch.finfo(probability.dtype).tiny
    log_probability = probability.gather(-1, index).clamp_min(smallest).log()
    return context, log_probability.masked_fill(empty, 0.0).squeeze(-1)


class Reinforce(nn.Module):
    """A loss whose gradient, averaged over the draws of `select_one`, is that of the expected loss.

    For a draw with probability `p` and loss `L` it is the gradient of `L + (L - b) log p`, where `L - b` is a constant.
    The baseline `b`, a moving average of the losses, only reduces the variance. The value is that of `L`.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("baseline", torch.zeros(()))

    def forward(self, losses: Tensor, log_probability: Tensor) -> Tensor:
        """The mean loss, from `losses` `[examples]` and the summed `log_probability` `[examples]` of their draws."""
        constant = losses.detach()
        score = (constant - self.baseline) * log_probability
        if self.training:
            mean = constant.mean().to(self.baseline.dtype)
            self.baseline.lerp_(mean, 1 - MOMENTUM)
        return (losses + score - score.detach()).mean()
