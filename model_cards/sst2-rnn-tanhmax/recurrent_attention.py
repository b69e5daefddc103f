"""Attention over the states of an encoder with one query: soft (a weighted sum), or hard (a single state), which is
trained by REINFORCE (Williams 1992; Xu et al. 2015, section 4.1)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .activations import activated, attention_changes

from .configuration_bidir_rnn import SCORES_ALONE, BidirRnnConfig
from .scores import SCORES

MOMENTUM = 0.9  # momentum of the REINFORCE baseline


class Attended(NamedTuple):
    """What attention returns."""

    context: Tensor  # [batch, size]
    coefficients: Tensor | None  # [batch, 1, 1, keys]; None without attention
    log_probability: Tensor | None = None  # [batch], of the selected key; None with soft attention


class BidirAlignment(nn.Module):
    """Attention with one query over encoder states, both of this size: score, coefficients, selection."""

    changes = attention_changes  # of running calls, by layer

    def __init__(self, config: BidirRnnConfig, size: int):
        super().__init__()
        self.config = config
        self.signed_index = 0  # its place among the signed layers of the model
        self.score = SCORES[config.attn_score](size, config)
        if config.attn_scope == "local-p":
            hidden, place = nn.Linear(size, size, bias=False), nn.Linear(size, 1, bias=False)
            self.place = nn.Sequential(hidden, nn.Tanh(), place)

    def forward(
        self, query: Tensor | None, states: Tensor, keep: Tensor, step: int = 0, values: Tensor | None = None
    ) -> Attended:
        """Attend as the config says; coefficients are 0 for keys not kept.

        Args:
            query: `[batch, size]`; None for scores without a query.
            states, keep: `[batch, keys, size]`, and boolean `[batch, keys]`.
            step: index of the decoder step, from 0; the centre for "local-m".
            values: `[batch, keys, value_size]`; by default the states.
        """
        coefficients = self.coefficients(query, states, keep[:, None, None], step)
        values = (states if values is None else values).unsqueeze(1)
        if self.config.attn_selection == "soft":
            return Attended((coefficients @ values).flatten(1), coefficients)
        context, log_probability = select_one(coefficients, values, sample=self.training)
        return Attended(context.flatten(1), coefficients, log_probability.flatten())

    def coefficients(self, query: Tensor | None, states: Tensor, keep: Tensor, step: int) -> Tensor:
        """The coefficients `[batch, 1, 1, keys]`; `keep` has the same shape."""
        queries = None if query is None else query.unsqueeze(1)
        scores = self.score(queries, states).unsqueeze(1)
        weight: Tensor | float = 1.0
        if self.config.attn_window is not None:
            keep, weight = self._local(query, keep, step)  # type: ignore[arg-type]  # scores with a query alone
        change = None if torch.compiler.is_compiling() else self.changes.get().get(self)
        coefficients = weight * self.activated(scores, keep, softmax=change is not None and change.softmax)
        return coefficients if change is None else change.edited(coefficients)

    def _local(self, query: Tensor, keep: Tensor, step: int) -> tuple[Tensor, Tensor | float]:
        """The keys in the window, and factors on their coefficients (Luong et al. 2015, section 3.2)."""
        window = self.config.attn_window
        positions = torch.arange(keep.shape[-1], device=keep.device)
        weight: Tensor | float = 1.0
        if self.config.attn_scope == "local-m":
            distance = positions - step
        else:
            share = torch.sigmoid(self.place(query))[:, None, None]
            length = keep.sum(-1, keepdim=True)
            distance = positions - length * share
            weight = torch.exp(-2 * (distance / window).square())  # the standard deviation is half the window
        return keep & (distance.abs() <= window), weight

    def activated(self, scores: Tensor, keep: Tensor, softmax: bool = False) -> Tensor:
        """The coefficients of scores and a keep-mask `[batch, 1, 1, keys]`."""
        activation = "softmax" if softmax else self.config.attn_activation
        return activated(scores, keep, activation, self.config.attn_negative_mass)


class BidirAttentionPooling(BidirAlignment):
    """Pools a text into one vector, `Σ_i a_i v_i`, with signed coefficients `a_i` and one value per position."""

    def __init__(self, config: BidirRnnConfig, size: int):
        super().__init__(config, size)
        learned = config.attn_query == "learned" and config.attn_score not in SCORES_ALONE
        self.query = nn.Parameter(torch.empty(size)) if learned else None
        self.value: nn.Module = nn.Identity()
        self.output_size = size
        if config.attn_score == "per_token":
            self.value = nn.Linear(size, config.hidden_size)
            self.output_size = config.hidden_size

    def forward(self, states: Tensor, keep: Tensor, last: Tensor | None = None) -> Attended:  # type: ignore[override]
        """Attend with the learned query, or with `last`, the encoder's last state `[batch, size]`."""
        query = last if self.query is None else self.query.expand(len(states), -1)
        return super().forward(query, states, keep, values=self.value(states))


def select_one(coefficients: Tensor, values: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
    """Select the value of one key per query, with the sign of its coefficient.

    With `sample`, key `i` is drawn with probability `|a_i| / Σ_j |a_j|`; else it is that of largest magnitude.

    Returns:
        `sign(a_i) v_i` `[..., queries, size]`, from coefficients `[..., queries, keys]` and values `[..., keys, size]`,
        and the log-probability of `i` `[..., queries]`. If all coefficients of a query are 0, the first is 0.
    """
    empty = (coefficients == 0).all(-1, keepdim=True)
    weights = coefficients.abs().masked_fill(empty, 1.0)
    probability = weights / weights.sum(-1, keepdim=True)
    if sample:
        rows = probability.detach().flatten(0, -2)
        index = torch.multinomial(rows, 1).view_as(empty)
    else:
        index = weights.argmax(-1, keepdim=True)
    sign = coefficients.gather(-1, index).sign()
    selection = torch.zeros_like(coefficients).scatter(-1, index, sign)
    log_probability = probability.gather(-1, index).log()
    return selection @ values, log_probability.squeeze(-1)


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
