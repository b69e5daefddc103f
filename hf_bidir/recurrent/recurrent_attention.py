"""Attention over the states of an encoder with one query: soft (a weighted sum), or hard (a single state), which is
trained by REINFORCE (Williams 1992; Xu et al. 2015, section 4.1)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

from hf_bidir.modeling.activations import activated, attention_changes

from .configuration_bidir_rnn import SCORES_ALONE, BidirRnnConfig
from .scores import SCORES

MOMENTUM = 0.9  # momentum of the REINFORCE baseline


class Attended(NamedTuple):
    """What attention returns."""

    context: Tensor  # [batch, size]
    coefficients: Tensor | None  # [batch, 1, 1, keys]; None without attention
    log_probability: Tensor | None = None  # [batch], of the selected key; None with soft attention


class BidirAlignment(nn.Module):
    """Attention with one query over encoder states, both of this size: score, coefficients, selection.

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
        if self.config.attn_selection == "soft":
            return Attended((coefficients @ values).flatten(1), coefficients)
        context, log_probability = select_one(coefficients, values, sample=self.training)
        return Attended(context.flatten(1), coefficients, log_probability.flatten())

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


def select_one(coefficients: Tensor, values: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
    """Select the value of one key per query, with the sign of its coefficient.

    With `sample`, key `i` is drawn with probability `|a_i| / Σ_j |a_j|`; else it is that of largest magnitude.

    Returns:
        `sign(a_i) v_i` `[..., queries, size]`, from coefficients `[..., queries, keys]` and values `[..., keys, size]`,
        and the log-probability of `i` `[..., queries]`. If all coefficients of a query are 0, the first is 0.
    """
    empty = (coefficients == 0).all(-1, keepdim=True)
    weights = coefficients.abs().masked_fill(empty, 1.0)
    distribution = Categorical(weights, validate_args=False)
    index = distribution.sample() if sample else weights.argmax(-1)
    selection = F.one_hot(index, coefficients.shape[-1]) * coefficients.sign()
    return selection @ values, distribution.log_prob(index)


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
