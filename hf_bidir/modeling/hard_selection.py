"""Hard attention: one key instead of a mixture, trained by REINFORCE (Williams 1992; Xu et al. 2015, section 4.1)."""

import torch
from torch import Tensor, nn

MOMENTUM = 0.9  # of the baseline


def select_one(coefficients: Tensor, values: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
    """The value of one key per query, with the sign of its coefficient.

    Args:
        coefficients: `[..., queries, keys]`; key `i` is drawn with probability `|a_i| / Σ_j |a_j|`.
        values: `[..., keys, size]`.
        sample: draw; else take the key whose coefficient is the largest in size.

    Returns:
        `sign(a_i) v_i` `[..., queries, size]`, and the logarithm of the probability of `i` `[..., queries]`. A query
        whose coefficients are all 0 gets zeros, for both.
    """
    size = coefficients.abs()
    total = size.sum(-1, keepdim=True)
    empty = total == 0
    probability = torch.where(empty, 1.0 / size.shape[-1], size / total.masked_fill(empty, 1.0))
    if sample:
        chosen = torch.multinomial(probability.detach().flatten(0, -2), 1).view(*size.shape[:-1], 1)
    else:
        chosen = size.argmax(-1, keepdim=True)
    sign = coefficients.gather(-1, chosen).sign()
    context = sign * values.gather(-2, chosen.expand(*chosen.shape[:-1], values.shape[-1]))
    log_probability = probability.gather(-1, chosen).clamp_min(torch.finfo(probability.dtype).tiny).log()
    return context, log_probability.masked_fill(empty, 0.0).squeeze(-1)


class Reinforce(nn.Module):
    """Adds to a loss what makes its gradient, over the draws of `select_one`, that of the expected loss.

    For a draw of probability `p` with the loss `L` that is the gradient of `L + (L - b) log p`, where `L` in the
    bracket counts as a number and `b`, the moving average of the losses so far, only makes the gradient less noisy.
    The value stays that of the loss.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("baseline", torch.zeros(()))

    def forward(self, losses: Tensor, log_probability: Tensor) -> Tensor:
        """One loss for `losses` `[examples]` and the summed `log_probability` `[examples]` of their draws."""
        advantage = losses.detach() - self.baseline
        if self.training:
            with torch.no_grad():
                self.baseline.lerp_(losses.detach().mean().to(self.baseline.dtype), 1 - MOMENTUM)
        score = advantage * log_probability
        return (losses + score - score.detach()).mean()
